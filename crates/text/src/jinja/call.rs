//! Arguments of calls, and macros.

use std::rc::Rc;

use super::fault::{Result, fail};
use super::nodes::{MacroNode, Name};
use super::run::{Run, Scope};
use super::value::{Dict, Value};

/// What a call gives.
#[derive(Default, Clone)]
pub struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(Name, Value)>,
}

impl Arguments {
    pub fn of(positional: Vec<Value>) -> Arguments {
        Arguments { positional, named: Vec::new() }
    }

    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.positional.iter().chain(self.named.iter().map(|(_, value)| value))
    }

    /// Takes a named argument out.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let place = self.named.iter().position(|(own, _)| **own == *name)?;
        Some(self.named.remove(place).1)
    }

    /// The arguments of parameters with these names, of which the first `required` have no default.
    ///
    /// # Errors
    ///
    /// One is missing, given twice, or has another name. `what` takes them.
    pub fn bound<const N: usize>(
        mut self,
        what: &str,
        names: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        self.check(what, &names, required)?;
        let mut positional = std::mem::take(&mut self.positional).into_iter();
        Ok(names.map(|name| positional.next().or_else(|| self.take(name))))
    }

    /// Checks what `bound` would.
    pub fn check(&self, what: &str, names: &[&str], required: usize) -> Result<()> {
        let place = |name: &str| names.iter().position(|own| *own == name);
        if self.positional.len() > names.len() {
            return fail(format!(
                "{what} takes {} arguments at most and is given {}",
                names.len(),
                self.positional.len()
            ));
        }
        for (name, _) in &self.named {
            match place(name) {
                None => return fail(format!("{what} has no argument `{name}`")),
                Some(place) if place < self.positional.len() => return fail(format!("{what} is given `{name}` twice")),
                Some(_) => {}
            }
        }
        let is_given = |ix: usize| ix < self.positional.len() || self.named.iter().any(|(own, _)| **own == *names[ix]);
        match (0..required).find(|ix| !is_given(*ix)) {
            Some(ix) => fail(format!("{what} misses its argument `{}`", names[ix])),
            None => Ok(()),
        }
    }

    /// For what takes none.
    pub fn none(self, what: &str) -> Result<()> {
        self.bound::<0>(what, [], 0).map(|_| ())
    }
}

/// A macro, or the block of a `call`, with the names around its definition.
pub struct Macro {
    /// None: the block of a `call`.
    pub name: Option<Name>,
    pub node: Rc<MacroNode>,
    pub scope: Rc<Scope>,
}

impl Macro {
    fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or("caller")
    }
}

impl Run<'_> {
    /// Calls a macro as jinja2's `Macro` binds its arguments.
    pub fn call_macro(&mut self, of: &Macro, mut given: Arguments) -> Result<Value> {
        let node = &*of.node;
        let scope = self.frame(&node.body, &of.scope);
        let count = node.parameters.len();
        let mut positional = std::mem::take(&mut given.positional);
        let rest = positional.split_off(positional.len().min(count));
        let is_filled = positional.len() == count;
        let mut positional = positional.into_iter();
        let mut bound = Vec::with_capacity(count);
        let mut has_caller = is_filled && node.parameters.iter().any(|(name, _)| **name == *"caller");
        for (name, _) in &node.parameters {
            bound.push(match positional.next() {
                Some(value) => Some(value),
                None => {
                    has_caller |= **name == *"caller";
                    given.take(name)
                }
            });
        }
        if node.uses.caller && !has_caller {
            let caller =
                given.take("caller").unwrap_or_else(|| Value::unnamed("the macro is called without a `call` block"));
            scope.set("caller".into(), caller);
        }
        if node.uses.kwargs {
            let named = given.named.drain(..).map(|(name, value)| (Value::text(name), value));
            scope.set("kwargs".into(), Value::Dict(Rc::new(Dict::of(named)?)));
        } else if let Some((other, _)) = given.named.first() {
            return fail(format!("the macro `{}` has no argument `{other}`", of.shown_name()));
        }
        if node.uses.varargs {
            scope.set("varargs".into(), Value::tuple(rest)?);
        } else if !rest.is_empty() {
            return fail(format!(
                "the macro `{}` takes {count} arguments at most and is given {}",
                of.shown_name(),
                count + rest.len()
            ));
        }
        // A default that names its own parameter, or a later one, finds it undefined.
        node.parameters.iter().for_each(|(name, _)| scope.hide(name.clone()));
        for ((name, default), value) in node.parameters.iter().zip(bound) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.evaluate(default, &scope)?,
                (None, None) => {
                    Value::unnamed(format!("the argument `{name}` of the macro `{}` is not given", of.shown_name()))
                }
            };
            scope.set(name.clone(), value);
        }
        let mut out = String::new();
        self.run_all(&node.body.body, &scope, &mut out)?;
        Ok(Value::text(out))
    }
}
