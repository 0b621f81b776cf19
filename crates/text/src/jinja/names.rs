//! Which names a template's frames assign and use, by jinja2's rules: what is hidden at a frame's begin, and what the
//! context has to bring.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use super::functions::Function;
use super::nodes::{Expression, ExpressionKind, Frame, MacroNode, Name, Statement, StatementKind, Target};

/// What a name of a frame is when the frame begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// Given: a parameter, a loop's target.
    Parameter,
    /// Looked up, in the frames around or the context.
    LookedUp,
    Hidden,
}

/// The names of one frame, as far as its statements were walked.
#[derive(Clone, Default)]
struct Symbols {
    begins: HashMap<Name, Begin>,
    stored: HashSet<Name>,
}

/// Fills `hidden` of this frame and of all within it.
pub fn hide(frame: &mut Frame) {
    hide_below(frame, &[], &mut Vec::new());
}

/// `outer`: the names of the frames around this one.
fn hide_below(frame: &mut Frame, parameters: &[Name], outer: &mut Vec<HashSet<Name>>) {
    let mut symbols = Symbols::default();
    for parameter in parameters {
        symbols.begins.insert(parameter.clone(), Begin::Parameter);
        symbols.stored.insert(parameter.clone());
    }
    symbols.walk(&frame.body, outer);
    let hidden = symbols.begins.iter().filter(|(_, begin)| **begin == Begin::Hidden);
    frame.hidden = hidden.map(|(name, _)| name.clone()).collect();
    frame.hidden.sort();
    outer.push(symbols.begins.into_keys().collect());
    hide_inner(&mut frame.body, outer);
    outer.pop();
}

fn hide_inner(statements: &mut [Statement], outer: &mut Vec<HashSet<Name>>) {
    for statement in statements {
        match &mut statement.kind {
            StatementKind::For(of) => {
                let of = Rc::get_mut(of).expect("nothing else holds a tree that is not finished");
                let mut parameters = vec!["loop".into()];
                names_of(&of.target, &mut parameters);
                hide_below(&mut of.body, &parameters, outer);
                hide_below(&mut of.otherwise, &[], outer);
            }
            StatementKind::If(_, then, otherwise) => {
                hide_inner(then, outer);
                hide_inner(otherwise, outer);
            }
            StatementKind::With(assignments, frame) => {
                let mut parameters = Vec::new();
                assignments.iter().for_each(|(target, _)| names_of(target, &mut parameters));
                hide_below(frame, &parameters, outer);
            }
            StatementKind::SetBlock(_, _, frame)
            | StatementKind::FilterBlock(_, frame)
            | StatementKind::Scope(frame) => {
                hide_below(frame, &[], outer);
            }
            StatementKind::Macro(of) | StatementKind::Call(_, of) | StatementKind::Generation(of) => {
                let of = Rc::get_mut(of).expect("nothing else holds a tree that is not finished");
                let own = ["caller", "kwargs", "varargs"].map(Name::from);
                let parameters: Vec<Name> = of.parameters.iter().map(|(name, _)| name.clone()).chain(own).collect();
                hide_below(&mut of.body, &parameters, outer);
            }
            StatementKind::Data(_)
            | StatementKind::Print(_)
            | StatementKind::Set(..)
            | StatementKind::Break
            | StatementKind::Continue => {}
        }
    }
}

fn names_of(target: &Target, names: &mut Vec<Name>) {
    match target {
        Target::Name(name) => names.push(name.clone()),
        Target::Attribute(..) => {}
        Target::Tuple(parts) => parts.iter().for_each(|part| names_of(part, names)),
    }
}

fn is_outer(name: &Name, outer: &[HashSet<Name>]) -> bool {
    outer.iter().any(|names| names.contains(name))
}

impl Symbols {
    fn load(&mut self, name: &Name, outer: &[HashSet<Name>]) {
        if !self.begins.contains_key(name) && !is_outer(name, outer) {
            self.begins.insert(name.clone(), Begin::LookedUp);
        }
    }

    fn store(&mut self, name: &Name, outer: &[HashSet<Name>]) {
        self.stored.insert(name.clone());
        if !self.begins.contains_key(name) {
            let begin = if is_outer(name, outer) { Begin::LookedUp } else { Begin::Hidden };
            self.begins.insert(name.clone(), begin);
        }
    }

    fn walk(&mut self, statements: &[Statement], outer: &[HashSet<Name>]) {
        for statement in statements {
            match &statement.kind {
                StatementKind::Data(_)
                | StatementKind::Break
                | StatementKind::Continue
                | StatementKind::Scope(_)
                | StatementKind::Generation(_) => {}
                StatementKind::Print(expression) | StatementKind::FilterBlock(expression, _) => {
                    self.walk_expression(expression, outer);
                }
                StatementKind::For(of) => self.walk_expression(&of.over, outer),
                StatementKind::If(test, then, otherwise) => {
                    self.walk_expression(test, outer);
                    self.walk_branches([then, otherwise], outer);
                }
                StatementKind::With(assignments, _) => {
                    assignments.iter().for_each(|(_, value)| self.walk_expression(value, outer));
                }
                StatementKind::Set(target, value) => {
                    self.walk_expression(value, outer);
                    self.walk_target(target, outer);
                }
                StatementKind::SetBlock(target, ..) => self.walk_target(target, outer),
                StatementKind::Macro(of) => self.store(&of.name, outer),
                StatementKind::Call(call, _) => {
                    self.walk_expression(&call.callee, outer);
                    call.arguments.iter().for_each(|argument| self.walk_expression(argument.expression(), outer));
                }
            }
        }
    }

    fn walk_branches(&mut self, branches: [&Vec<Statement>; 2], outer: &[HashSet<Name>]) {
        let before = self.clone();
        for branch in branches {
            let mut symbols = before.clone();
            symbols.walk(branch, outer);
            for (name, begin) in symbols.begins {
                self.begins.entry(name).or_insert(begin);
            }
            for name in symbols.stored {
                // Assigned in a branch alone, it may still be what it was.
                if !before.stored.contains(&name) {
                    self.begins.insert(name.clone(), Begin::LookedUp);
                }
                self.stored.insert(name);
            }
        }
    }

    fn walk_target(&mut self, target: &Target, outer: &[HashSet<Name>]) {
        match target {
            Target::Name(name) => self.store(name, outer),
            Target::Attribute(of, _) => self.load(of, outer),
            Target::Tuple(parts) => parts.iter().for_each(|part| self.walk_target(part, outer)),
        }
    }

    fn walk_expression(&mut self, expression: &Expression, outer: &[HashSet<Name>]) {
        if let ExpressionKind::Name(name) = &expression.kind {
            self.load(name, outer);
        }
        expression.parts().into_iter().for_each(|part| self.walk_expression(part, outer));
    }
}

/// Whether statements use one of the names that only macros have, in whatever frame within them.
pub fn uses(statements: &[Statement], name: &str) -> bool {
    let asks = |expression: &Expression| expression.uses(name);
    let default_asks = |of: &MacroNode| of.parameters.iter().flat_map(|(_, default)| default).any(asks);
    statements.iter().any(|statement| match &statement.kind {
        StatementKind::Data(_) | StatementKind::Break | StatementKind::Continue => false,
        StatementKind::Print(expression) | StatementKind::Set(_, expression) => asks(expression),
        StatementKind::For(of) => {
            asks(&of.over)
                || of.only_if.as_ref().is_some_and(asks)
                || uses(&of.body.body, name)
                || uses(&of.otherwise.body, name)
        }
        StatementKind::If(test, then, otherwise) => asks(test) || uses(then, name) || uses(otherwise, name),
        StatementKind::With(assignments, frame) => {
            assignments.iter().any(|(_, value)| asks(value)) || uses(&frame.body, name)
        }
        StatementKind::SetBlock(_, filter, frame) => filter.as_ref().is_some_and(asks) || uses(&frame.body, name),
        StatementKind::FilterBlock(filter, frame) => asks(filter) || uses(&frame.body, name),
        StatementKind::Scope(frame) => uses(&frame.body, name),
        StatementKind::Macro(of) | StatementKind::Generation(of) => default_asks(of) || uses(&of.body.body, name),
        StatementKind::Call(call, of) => {
            asks(&call.callee)
                || call.arguments.iter().any(|argument| asks(argument.expression()))
                || default_asks(of)
                || uses(&of.body.body, name)
        }
    })
}

/// The names that the context has to bring, and the attributes that are looked up in them, as dotted paths.
pub fn asked_of_context(frame: &Frame) -> BTreeSet<String> {
    let mut asked = Asked { assigned: Vec::new(), found: BTreeSet::new() };
    asked.frame(frame, &[]);
    let is_own = |path: &String| path.split('.').next().and_then(Function::named).is_some();
    asked.found.retain(|path| !is_own(path));
    asked.found
}

struct Asked {
    /// What each frame has assigned so far.
    assigned: Vec<HashSet<Name>>,
    found: BTreeSet<String>,
}

impl Asked {
    fn frame(&mut self, frame: &Frame, parameters: &[Name]) {
        self.assigned.push(parameters.iter().cloned().collect());
        self.statements(&frame.body);
        self.assigned.pop();
    }

    fn assign(&mut self, target: &Target) {
        let mut names = Vec::new();
        names_of(target, &mut names);
        self.assigned.last_mut().expect("statements are in a frame").extend(names);
        if let Target::Attribute(of, _) = target {
            self.name(of, String::new());
        }
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            match &statement.kind {
                StatementKind::Data(_) | StatementKind::Break | StatementKind::Continue => {}
                StatementKind::Print(expression) => self.expression(expression, String::new()),
                StatementKind::For(of) => {
                    self.expression(&of.over, String::new());
                    let mut parameters = vec!["loop".into()];
                    names_of(&of.target, &mut parameters);
                    self.assigned.push(parameters.iter().cloned().collect());
                    of.only_if.iter().for_each(|test| self.expression(test, String::new()));
                    self.assigned.pop();
                    self.frame(&of.body, &parameters);
                    self.frame(&of.otherwise, &[]);
                }
                StatementKind::If(test, then, otherwise) => {
                    self.expression(test, String::new());
                    self.statements(then);
                    self.statements(otherwise);
                }
                StatementKind::With(assignments, frame) => {
                    let mut parameters = Vec::new();
                    for (target, value) in assignments {
                        self.expression(value, String::new());
                        names_of(target, &mut parameters);
                    }
                    self.frame(frame, &parameters);
                }
                StatementKind::Set(target, value) => {
                    self.expression(value, String::new());
                    self.assign(target);
                }
                StatementKind::SetBlock(target, filter, frame) => {
                    filter.iter().for_each(|filter| self.expression(filter, String::new()));
                    self.frame(frame, &[]);
                    self.assign(target);
                }
                StatementKind::FilterBlock(filter, frame) => {
                    self.expression(filter, String::new());
                    self.frame(frame, &[]);
                }
                StatementKind::Scope(frame) => self.frame(frame, &[]),
                StatementKind::Macro(of) | StatementKind::Call(_, of) | StatementKind::Generation(of) => {
                    if let StatementKind::Call(call, _) = &statement.kind {
                        self.expression(&call.callee, String::new());
                        call.arguments
                            .iter()
                            .for_each(|argument| self.expression(argument.expression(), String::new()));
                    } else if let StatementKind::Macro(of) = &statement.kind {
                        self.assign(&Target::Name(of.name.clone()));
                    }
                    of.parameters.iter().flat_map(|(_, default)| default).for_each(|default| {
                        self.expression(default, String::new());
                    });
                    let own = [of.uses.caller, of.uses.kwargs, of.uses.varargs];
                    let own = ["caller", "kwargs", "varargs"].into_iter().zip(own).filter(|(_, used)| *used);
                    let own = own.map(|(name, _)| Name::from(name));
                    let parameters: Vec<Name> = of.parameters.iter().map(|(name, _)| name.clone()).chain(own).collect();
                    self.frame(&of.body, &parameters);
                }
            }
        }
    }

    /// `path`: what is looked up in it, each part after a dot.
    fn expression(&mut self, expression: &Expression, path: String) {
        match &expression.kind {
            ExpressionKind::Name(name) => self.name(name, path),
            ExpressionKind::Attribute(of, name) => self.expression(of, format!(".{name}{path}")),
            _ => expression.parts().into_iter().for_each(|part| self.expression(part, String::new())),
        }
    }

    fn name(&mut self, name: &Name, path: String) {
        if !is_outer(name, &self.assigned) {
            self.found.insert(format!("{name}{path}"));
        }
    }
}
