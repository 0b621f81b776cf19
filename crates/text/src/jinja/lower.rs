//! Makes our tree of minijinja's, and mends what its parser reads otherwise than jinja2: tuples, the place of a minus,
//! escapes in texts. What jinja2 has and is not supported is refused here, by name.

use std::rc::Rc;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt, UnaryOpKind};

use super::fault::{Result, at_line, fail};
use super::filters::Filter;
use super::nodes::{
    Argument, Call, Expression, ExpressionKind, For, Frame, MacroNode, Name, Named, Statement, StatementKind, Target,
    Uses,
};
use super::operators::{Comparison, Operator};
use super::predicates::Predicate;
use super::source::{GENERATION, unquoted};
use super::value::Value;

/// Levels of expressions and statements within each other.
const MOST_LEVELS: usize = 400;

/// The template's outermost frame. `source`: what was parsed.
pub fn lowered(source: &str, template: &Stmt<'_>) -> Result<Frame> {
    let Stmt::Template(template) = template else { return fail("a template is expected") };
    Lowering { source, level: 0, loops: 0, is_conditional: false }.frame(&template.children)
}

struct Lowering<'s> {
    source: &'s str,
    level: usize,
    /// Loops around, up to the body of a macro.
    loops: usize,
    /// Within an `if`, where jinja2 finds an unknown filter only when it is used.
    is_conditional: bool,
}

/// Where a node begins, in bytes.
fn start(expr: &Expr<'_>) -> usize {
    expr.span().start_offset as usize
}

fn name(name: &str) -> Name {
    name.into()
}

impl Lowering<'_> {
    fn frame(&mut self, statements: &[Stmt<'_>]) -> Result<Frame> {
        let outer = std::mem::replace(&mut self.is_conditional, false);
        let body = self.statements(statements);
        self.is_conditional = outer;
        Ok(Frame { body: body?, hidden: Vec::new() })
    }

    /// A frame within so many loops of its own function.
    fn frame_in(&mut self, loops: usize, statements: &[Stmt<'_>]) -> Result<Frame> {
        let outer = std::mem::replace(&mut self.loops, loops);
        let frame = self.frame(statements);
        self.loops = outer;
        frame
    }

    fn check_loop(&self, what: &str) -> Result<()> {
        if self.loops == 0 { fail(format!("`{what}` stands in no loop")) } else { Ok(()) }
    }

    /// In place: the statements belong to the frame around them.
    fn statements(&mut self, statements: &[Stmt<'_>]) -> Result<Vec<Statement>> {
        self.deeper(|own| statements.iter().map(|statement| own.statement(statement)).collect())
    }

    fn branch<T>(&mut self, branch: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = std::mem::replace(&mut self.is_conditional, true);
        let result = branch(self);
        self.is_conditional = outer;
        result
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.level == MOST_LEVELS {
            return fail(format!("the template nests too deeply: {MOST_LEVELS} levels are the most"));
        }
        self.level += 1;
        let result = work(self);
        self.level -= 1;
        result
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Result<Statement> {
        let line = statement_line(statement);
        at_line(self.statement_kind(statement), line).map(|kind| Statement { kind, line })
    }

    fn statement_kind(&mut self, statement: &Stmt<'_>) -> Result<StatementKind> {
        Ok(match statement {
            Stmt::Template(template) => StatementKind::Scope(self.frame(&template.children)?),
            Stmt::EmitRaw(raw) => StatementKind::Data(raw.raw.into()),
            Stmt::EmitExpr(print) => StatementKind::Print(self.expression(&print.expr)?),
            Stmt::ForLoop(of) => StatementKind::For(Rc::new(For {
                over: self.expression(&of.iter)?,
                target: self.target(&of.target)?,
                only_if: of.filter_expr.as_ref().map(|test| self.expression(test)).transpose()?,
                is_recursive: of.recursive,
                body: self.frame_in(self.loops + 1, &of.body)?,
                // It stands behind the loop: what ends a loop there ends the one around.
                otherwise: self.frame_in(if of.recursive { 0 } else { self.loops }, &of.else_body)?,
            })),
            Stmt::IfCond(of) => {
                let test = self.branch(|own| own.expression(&of.expr))?;
                let then = self.branch(|own| own.statements(&of.true_body))?;
                StatementKind::If(test, then, self.branch(|own| own.statements(&of.false_body))?)
            }
            Stmt::WithBlock(with) => {
                let assignment =
                    |(target, value): &(Expr<'_>, Expr<'_>)| Ok((self.target(target)?, self.expression(value)?));
                let assignments = with.assignments.iter().map(assignment).collect::<Result<_>>()?;
                StatementKind::With(assignments, self.frame(&with.body)?)
            }
            Stmt::Set(set) => {
                let value = self.expression(&set.expr)?;
                StatementKind::Set(self.target(&set.target)?, value)
            }
            Stmt::SetBlock(set) => {
                let filter = set.filter.as_ref().map(|filter| self.expression(filter)).transpose()?;
                StatementKind::SetBlock(self.target(&set.target)?, filter, self.frame(&set.body)?)
            }
            Stmt::FilterBlock(block) => match &block.filter {
                Expr::Filter(filter) if filter.name == GENERATION => {
                    let node = self.node(GENERATION, Vec::new(), &block.body)?;
                    StatementKind::Generation(Rc::new(node))
                }
                filter => StatementKind::FilterBlock(self.expression(filter)?, self.frame(&block.body)?),
            },
            Stmt::AutoEscape(block) => match self.expression(&block.enabled)?.kind {
                ExpressionKind::Constant(Value::Bool(false)) => StatementKind::Scope(self.frame(&block.body)?),
                _ => return fail("`autoescape` is supported with `false` alone: nothing is escaped"),
            },
            Stmt::Macro(of) => StatementKind::Macro(Rc::new(self.macro_node(of)?)),
            Stmt::CallBlock(block) => {
                let call = self.call(&block.call)?;
                StatementKind::Call(call, Rc::new(self.macro_node(&block.macro_decl)?))
            }
            Stmt::Break(_) => {
                self.check_loop("break")?;
                StatementKind::Break
            }
            Stmt::Continue(_) => {
                self.check_loop("continue")?;
                StatementKind::Continue
            }
            Stmt::Do(_) => return fail("`do` is no statement: use `set`"),
            Stmt::Block(_) | Stmt::Extends(_) | Stmt::Include(_) | Stmt::Import(_) | Stmt::FromImport(_) => {
                return fail("`block`, `extends`, `include` and `import` are not supported: a template is one text");
            }
        })
    }

    fn macro_node(&mut self, of: &ast::Macro<'_>) -> Result<MacroNode> {
        let without = of.args.len() - of.defaults.len();
        let mut parameters = Vec::new();
        for (ix, parameter) in of.args.iter().enumerate() {
            let Target::Name(name) = self.target(parameter)? else { return fail("a parameter is a name") };
            let default = if ix < without { None } else { Some(self.expression(&of.defaults[ix - without])?) };
            parameters.push((name, default));
        }
        self.node(of.name, parameters, &of.body)
    }

    fn node(&mut self, own: &str, parameters: Vec<(Name, Option<Expression>)>, body: &[Stmt<'_>]) -> Result<MacroNode> {
        let body = self.frame_in(0, body)?;
        let uses = |name: &str| super::names::uses(&body.body, name);
        let rest = |name: &str| uses(name) && parameters.iter().all(|(own, _)| **own != *name);
        let uses = Uses { caller: uses("caller"), kwargs: rest("kwargs"), varargs: rest("varargs") };
        Ok(MacroNode { name: name(own), parameters, uses, body })
    }

    fn target(&mut self, target: &Expr<'_>) -> Result<Target> {
        match target {
            Expr::Var(var) => Ok(Target::Name(name(var.id))),
            Expr::GetAttr(attribute) => match &attribute.expr {
                Expr::Var(of) => Ok(Target::Attribute(name(of.id), name(attribute.name))),
                _ => fail("an attribute is set of a name: `set a.b = …`"),
            },
            Expr::List(list) => {
                Ok(Target::Tuple(list.items.iter().map(|item| self.target(item)).collect::<Result<_>>()?))
            }
            other => fail(format!("{} cannot be assigned to", other.description())),
        }
    }

    fn boxed(&mut self, expr: &Expr<'_>) -> Result<Box<Expression>> {
        self.expression(expr).map(Box::new)
    }

    fn both(&mut self, a: &Expr<'_>, b: &Expr<'_>) -> Result<Box<[Expression; 2]>> {
        Ok(Box::new([self.expression(a)?, self.expression(b)?]))
    }

    fn all(&mut self, exprs: &[Expr<'_>]) -> Result<Vec<Expression>> {
        exprs.iter().map(|expr| self.expression(expr)).collect()
    }

    fn expression(&mut self, expr: &Expr<'_>) -> Result<Expression> {
        let line = expr.span().start_line.into();
        let kind = self.deeper(|own| own.kind(expr));
        at_line(kind, line).map(|kind| Expression { kind, line })
    }

    fn kind(&mut self, expr: &Expr<'_>) -> Result<ExpressionKind> {
        Ok(match expr {
            Expr::Var(var) => ExpressionKind::Name(name(var.id)),
            Expr::Const(constant) => ExpressionKind::Constant(self.constant(constant)?),
            Expr::UnaryOp(of) => match of.op {
                UnaryOpKind::Not => ExpressionKind::Not(self.boxed(&of.expr)?),
                UnaryOpKind::Neg => ExpressionKind::Negative(self.boxed(&of.expr)?),
            },
            Expr::BinOp(of) => self.binary(of)?,
            Expr::Compare(of) => {
                let others = of.ops.iter().map(|other| Ok((comparison(other.op), self.expression(&other.expr)?)));
                let others = others.collect::<Result<_>>()?;
                ExpressionKind::Compare(self.boxed(&of.expr)?, others)
            }
            Expr::IfExpr(of) => self.branch(|own| {
                let test = own.boxed(&of.test_expr)?;
                let then = own.boxed(&of.true_expr)?;
                let otherwise = of.false_expr.as_ref().map(|expr| own.boxed(expr)).transpose()?;
                Ok(ExpressionKind::If { test, then, otherwise })
            })?,
            Expr::Filter(of) => {
                let input = match &of.expr {
                    Some(input) => self.boxed(input)?,
                    None => {
                        Box::new(Expression { kind: ExpressionKind::Captured, line: expr.span().start_line.into() })
                    }
                };
                ExpressionKind::Filter(self.named("filter", of.name, Filter::named)?, input, self.arguments(&of.args)?)
            }
            Expr::Test(of) => {
                let input = self.boxed(&of.expr)?;
                ExpressionKind::Test(self.named("test", of.name, Predicate::named)?, input, self.arguments(&of.args)?)
            }
            Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Slice(_) | Expr::Call(_) => self.postfix(expr)?,
            Expr::List(list) => match self.is_tuple(list) {
                true => ExpressionKind::Tuple(self.all(&list.items)?),
                false => ExpressionKind::List(self.all(&list.items)?),
            },
            Expr::Map(map) => {
                ExpressionKind::Dict(self.all(&map.keys)?.into_iter().zip(self.all(&map.values)?).collect())
            }
        })
    }

    /// The parser has one node for `[a, b]`, `(a, b)` and `a, b`; that of the last begins at its second part.
    fn is_tuple(&self, list: &Spanned<ast::List<'_>>) -> bool {
        let at = list.span().start_offset as usize;
        self.source.as_bytes().get(at) != Some(&b'[') || list.items.first().is_some_and(|first| start(first) < at)
    }

    /// An unknown name of a filter or test is an error at once, unless it stands in a condition's branch.
    fn named<T>(&self, what: &str, own: &str, find: fn(&str) -> Option<T>) -> Result<Named<T>> {
        match find(own) {
            Some(known) => Ok(Named::Known(known)),
            None if self.is_conditional => Ok(Named::Unknown(name(own))),
            None => fail(format!("no {what} is called `{own}`")),
        }
    }

    fn binary(&mut self, of: &ast::BinOp<'_>) -> Result<ExpressionKind> {
        let operator = match of.op {
            BinOpKind::ScAnd => return Ok(ExpressionKind::And(self.both(&of.left, &of.right)?)),
            BinOpKind::ScOr => return Ok(ExpressionKind::Or(self.both(&of.left, &of.right)?)),
            BinOpKind::Concat => return Ok(ExpressionKind::Concatenation(self.both(&of.left, &of.right)?)),
            BinOpKind::Add => Operator::Add,
            BinOpKind::Sub => Operator::Subtract,
            BinOpKind::Mul => Operator::Multiply,
            BinOpKind::Div => Operator::Divide,
            BinOpKind::FloorDiv => Operator::FloorDivide,
            BinOpKind::Rem => Operator::Modulo,
            BinOpKind::Pow => Operator::Power,
            BinOpKind::Eq => return self.compared(of, Comparison::Equal),
            BinOpKind::Ne => return self.compared(of, Comparison::Unequal),
            BinOpKind::Lt => return self.compared(of, Comparison::Less),
            BinOpKind::Lte => return self.compared(of, Comparison::LessOrEqual),
            BinOpKind::Gt => return self.compared(of, Comparison::Greater),
            BinOpKind::Gte => return self.compared(of, Comparison::GreaterOrEqual),
            BinOpKind::In => return self.compared(of, Comparison::In),
        };
        Ok(ExpressionKind::Operator(operator, self.both(&of.left, &of.right)?))
    }

    fn compared(&mut self, of: &ast::BinOp<'_>, comparison: Comparison) -> Result<ExpressionKind> {
        Ok(ExpressionKind::Compare(self.boxed(&of.left)?, vec![(comparison, self.expression(&of.right)?)]))
    }

    /// A lookup, slice or call. The parser reads `-a.b` as `(-a).b`: the minus goes before the whole.
    fn postfix(&mut self, expr: &Expr<'_>) -> Result<ExpressionKind> {
        let mut base = expr;
        let mut first = expr;
        while let Some(inner) = postfix_of(base) {
            (first, base) = (base, inner);
        }
        let mut minuses = 0;
        // In parentheses, the minus begins behind what is looked up.
        let mut at = start(first);
        while let Expr::UnaryOp(of) = base
            && matches!(of.op, UnaryOpKind::Neg)
            && self.source.get(at..start(base)).is_some_and(|between| between.trim().is_empty())
        {
            minuses += 1;
            at = start(base) + 1;
            base = &of.expr;
        }
        let mut kind = self.postfix_over(expr, base)?.kind;
        for _ in 0..minuses {
            kind = ExpressionKind::Negative(Box::new(Expression { kind, line: expr.span().start_line.into() }));
        }
        Ok(kind)
    }

    /// `expr`, whose innermost operand is `base`.
    fn postfix_over(&mut self, expr: &Expr<'_>, base: &Expr<'_>) -> Result<Expression> {
        let line = expr.span().start_line.into();
        let Some(inner) = postfix_of(expr) else { return self.expression(base) };
        let of = Box::new(self.deeper(|own| own.postfix_over(inner, base))?);
        let kind = match expr {
            Expr::GetAttr(attribute) => ExpressionKind::Attribute(of, name(attribute.name)),
            Expr::GetItem(item) => ExpressionKind::Item(Box::new([*of, self.expression(&item.subscript_expr)?])),
            Expr::Slice(slice) => {
                let mut bound =
                    |bound: &Option<Expr<'_>>| bound.as_ref().map(|bound| self.expression(bound)).transpose();
                let bounds = [bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?];
                ExpressionKind::Slice(of, Box::new(bounds))
            }
            Expr::Call(call) => ExpressionKind::Call(Call { callee: of, arguments: self.arguments(&call.args)? }),
            _ => return fail("a lookup, slice or call is expected"),
        };
        Ok(Expression { kind, line })
    }

    fn call(&mut self, call: &Spanned<ast::Call<'_>>) -> Result<Call> {
        Ok(Call { callee: self.boxed(&call.expr)?, arguments: self.arguments(&call.args)? })
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) -> Result<Vec<Argument>> {
        let argument = |argument: &CallArg<'_>| {
            Ok(match argument {
                CallArg::Pos(expr) => Argument::Positional(self.expression(expr)?),
                CallArg::Kwarg(own, expr) => Argument::Named(name(own), self.expression(expr)?),
                CallArg::PosSplat(expr) => Argument::All(self.expression(expr)?),
                CallArg::KwargSplat(expr) => Argument::AllNamed(self.expression(expr)?),
            })
        };
        arguments.iter().map(argument).collect()
    }

    fn constant(&self, constant: &Spanned<ast::Const>) -> Result<Value> {
        use minijinja::value::ValueKind;
        let span = constant.span();
        let written = self.source.get(span.start_offset as usize..span.end_offset as usize).unwrap_or_default();
        match constant.value.kind() {
            ValueKind::Bool => Ok(Value::Bool(constant.value.is_true())),
            ValueKind::String => match unquoted(written) {
                Ok(text) => Ok(Value::text(text)),
                Err(why) => fail(why),
            },
            ValueKind::Number => {
                let padded = written.len() > 1 && written.starts_with('0') && written.as_bytes()[1].is_ascii_digit();
                if padded && !written.contains(['.', 'e', 'E']) && written.contains(|c| c != '0' && c != '_') {
                    return fail(format!("`{written}` is no number: it begins with a zero"));
                }
                match i128::try_from(constant.value.clone()) {
                    Ok(int) if !written.contains('.') && (is_hexadecimal(written) || !written.contains(['e', 'E'])) => {
                        Ok(Value::Int(int))
                    }
                    _ => match f64::try_from(constant.value.clone()) {
                        Ok(float) if written.contains('.') || written.contains(['e', 'E']) => Ok(Value::Float(float)),
                        _ => fail(format!("`{written}` is an integer of more than 127 bits")),
                    },
                }
            }
            _ => Ok(Value::None),
        }
    }
}

fn is_hexadecimal(number: &str) -> bool {
    number.starts_with("0x") || number.starts_with("0X")
}

fn comparison(op: CompareOpKind) -> Comparison {
    match op {
        CompareOpKind::Eq => Comparison::Equal,
        CompareOpKind::Ne => Comparison::Unequal,
        CompareOpKind::Lt => Comparison::Less,
        CompareOpKind::Lte => Comparison::LessOrEqual,
        CompareOpKind::Gt => Comparison::Greater,
        CompareOpKind::Gte => Comparison::GreaterOrEqual,
        CompareOpKind::In => Comparison::In,
        CompareOpKind::NotIn => Comparison::NotIn,
    }
}

/// What a lookup, slice or call is of.
fn postfix_of<'e, 's>(expr: &'e Expr<'s>) -> Option<&'e Expr<'s>> {
    match expr {
        Expr::GetAttr(of) => Some(&of.expr),
        Expr::GetItem(of) => Some(&of.expr),
        Expr::Slice(of) => Some(&of.expr),
        Expr::Call(of) => Some(&of.expr),
        _ => None,
    }
}

fn statement_line(statement: &Stmt<'_>) -> u32 {
    let span = match statement {
        Stmt::Template(of) => of.span(),
        Stmt::EmitExpr(of) => of.span(),
        Stmt::EmitRaw(of) => of.span(),
        Stmt::ForLoop(of) => of.span(),
        Stmt::IfCond(of) => of.span(),
        Stmt::WithBlock(of) => of.span(),
        Stmt::Set(of) => of.span(),
        Stmt::SetBlock(of) => of.span(),
        Stmt::AutoEscape(of) => of.span(),
        Stmt::FilterBlock(of) => of.span(),
        Stmt::Block(of) => of.span(),
        Stmt::Import(of) => of.span(),
        Stmt::FromImport(of) => of.span(),
        Stmt::Extends(of) => of.span(),
        Stmt::Include(of) => of.span(),
        Stmt::Macro(of) => of.span(),
        Stmt::CallBlock(of) => of.span(),
        Stmt::Continue(of) => of.span(),
        Stmt::Break(of) => of.span(),
        Stmt::Do(of) => of.span(),
    };
    span.start_line.into()
}
