//! A template's tree, which `lower` makes of minijinja's and `run` walks. Nodes own what they hold, as macros outlive
//! the statement that defines them.

use std::rc::Rc;

use super::filters::Filter;
use super::operators::{Comparison, Operator};
use super::predicates::Predicate;
use super::value::Value;

/// A name in a template.
pub type Name = Rc<str>;

/// Statements whose assignments end with them, in jinja2's sense: the body of a loop or macro, but not of an `if`.
pub struct Frame {
    pub body: Vec<Statement>,
    /// Names that are undefined at its begin, whatever the context says: they are assigned below, before any use at
    /// this level, and by no frame around it.
    pub hidden: Vec<Name>,
}

pub struct Statement {
    pub kind: StatementKind,
    pub line: u32,
}

pub enum StatementKind {
    Data(Rc<str>),
    Print(Expression),
    For(Rc<For>),
    If(Expression, Vec<Statement>, Vec<Statement>),
    With(Vec<(Target, Expression)>, Frame),
    Set(Target, Expression),
    /// The filters take the frame's text from `Expression::Captured`.
    SetBlock(Target, Option<Expression>, Frame),
    FilterBlock(Expression, Frame),
    Scope(Frame),
    Macro(Rc<MacroNode>),
    /// A call with what it gets as `caller`.
    Call(Call, Rc<MacroNode>),
    /// transformers' `generation`, whose body is a macro that is called at once.
    Generation(Rc<MacroNode>),
    Break,
    Continue,
}

pub struct For {
    pub target: Target,
    pub over: Expression,
    pub only_if: Option<Expression>,
    pub is_recursive: bool,
    pub body: Frame,
    pub otherwise: Frame,
}

pub struct MacroNode {
    pub name: Name,
    /// Each with its default.
    pub parameters: Vec<(Name, Option<Expression>)>,
    /// Whether the body uses `caller`, `kwargs` or `varargs`.
    pub uses: Uses,
    pub body: Frame,
}

#[derive(Clone, Copy, Default)]
pub struct Uses {
    pub caller: bool,
    pub kwargs: bool,
    pub varargs: bool,
}

/// What a value is assigned to.
pub enum Target {
    Name(Name),
    /// An attribute of a namespace.
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

pub struct Expression {
    pub kind: ExpressionKind,
    pub line: u32,
}

pub enum ExpressionKind {
    Constant(Value),
    /// What the block has printed that this expression filters.
    Captured,
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Operator(Operator, Box<[Expression; 2]>),
    And(Box<[Expression; 2]>),
    Or(Box<[Expression; 2]>),
    Concatenation(Box<[Expression; 2]>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    If {
        test: Box<Expression>,
        then: Box<Expression>,
        otherwise: Option<Box<Expression>>,
    },
    Filter(Named<Filter>, Box<Expression>, Vec<Argument>),
    Test(Named<Predicate>, Box<Expression>, Vec<Argument>),
    Attribute(Box<Expression>, Name),
    Item(Box<[Expression; 2]>),
    Slice(Box<Expression>, Box<[Option<Expression>; 3]>),
    Call(Call),
}

/// A filter or test, or the name of one that there is not: that is an error where it is used.
#[derive(Clone)]
pub enum Named<T> {
    Known(T),
    Unknown(Name),
}

pub struct Call {
    pub callee: Box<Expression>,
    pub arguments: Vec<Argument>,
}

pub enum Argument {
    Positional(Expression),
    Named(Name, Expression),
    /// `*values`
    All(Expression),
    /// `**fields`
    AllNamed(Expression),
}

impl Argument {
    pub fn expression(&self) -> &Expression {
        match self {
            Argument::Positional(expression)
            | Argument::Named(_, expression)
            | Argument::All(expression)
            | Argument::AllNamed(expression) => expression,
        }
    }
}

impl Expression {
    /// The expressions right within this one, in the order in which jinja2 visits them.
    pub fn parts(&self) -> Vec<&Expression> {
        fn all(arguments: &[Argument]) -> impl Iterator<Item = &Expression> {
            arguments.iter().map(Argument::expression)
        }
        match &self.kind {
            ExpressionKind::Constant(_) | ExpressionKind::Captured | ExpressionKind::Name(_) => Vec::new(),
            ExpressionKind::List(items) | ExpressionKind::Tuple(items) => items.iter().collect(),
            ExpressionKind::Dict(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
            ExpressionKind::Not(of) | ExpressionKind::Negative(of) | ExpressionKind::Attribute(of, _) => vec![of],
            ExpressionKind::Operator(_, both)
            | ExpressionKind::And(both)
            | ExpressionKind::Or(both)
            | ExpressionKind::Concatenation(both)
            | ExpressionKind::Item(both) => both.iter().collect(),
            ExpressionKind::Compare(first, others) => {
                [&**first].into_iter().chain(others.iter().map(|(_, other)| other)).collect()
            }
            ExpressionKind::If { test, then, otherwise } => {
                [&**test, &**then].into_iter().chain(otherwise.as_deref()).collect()
            }
            ExpressionKind::Filter(_, of, arguments) | ExpressionKind::Test(_, of, arguments) => {
                [&**of].into_iter().chain(all(arguments)).collect()
            }
            ExpressionKind::Slice(of, bounds) => [&**of].into_iter().chain(bounds.iter().flatten()).collect(),
            ExpressionKind::Call(call) => [&*call.callee].into_iter().chain(all(&call.arguments)).collect(),
        }
    }

    /// Whether it uses this name.
    pub fn uses(&self, name: &str) -> bool {
        matches!(&self.kind, ExpressionKind::Name(own) if **own == *name)
            || self.parts().into_iter().any(|part| part.uses(name))
    }
}
