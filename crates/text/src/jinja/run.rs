//! Renders a template's tree: statements, expressions and the names that they see. A run is bounded in steps, where
//! its environment says so, and in levels.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::Environment;
use super::call::{Arguments, Macro};
use super::fault::{FaultKind, Result, at_line, fail, fault, undefined};
use super::functions::Function;
use super::methods;
use super::nodes::{
    Argument, Call, Expression, ExpressionKind, For, Frame, MacroNode, Name, Named, Statement, StatementKind, Target,
};
use super::operators::{self, Comparison};
use super::value::{Extent, Items, Namespace, Undefined, VALUE_BYTES, Value, View};

/// Names of a frame, and the frame around it.
pub struct Scope {
    /// None: undefined here, whatever is around.
    names: RefCell<Vec<(Name, Option<Value>)>>,
    around: Option<Rc<Scope>>,
}

impl Scope {
    pub fn new(around: Option<Rc<Scope>>) -> Rc<Scope> {
        Rc::new(Scope { names: RefCell::default(), around })
    }

    pub fn set(&self, name: Name, value: Value) {
        let mut names = self.names.borrow_mut();
        match names.iter_mut().find(|(own, _)| *own == name) {
            Some((_, old)) => *old = Some(value),
            None => names.push((name, Some(value))),
        }
    }

    /// Makes a name undefined here, whatever is around.
    pub fn hide(&self, name: Name) {
        self.names.borrow_mut().push((name, None));
    }

    /// None: no frame has the name; Some(None): one has it, undefined.
    fn get(&self, name: &Name) -> Option<Option<Value>> {
        let mut scope = self;
        loop {
            let found = scope.names.borrow().iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
            match (found, &scope.around) {
                (Some(found), _) => return Some(found),
                (None, Some(around)) => scope = around,
                (None, None) => return None,
            }
        }
    }
}

/// The state of a loop: its variable `loop`.
pub struct LoopState {
    pub items: Vec<Value>,
    pub extent: Extent,
    /// Items that the loop has begun with.
    begun: Cell<usize>,
    pub depth0: usize,
    /// What `changed` was called with last.
    pub last_changed: RefCell<Option<Value>>,
    /// What a recursive loop renders other items with.
    recursion: Option<(Rc<For>, Rc<Scope>)>,
}

impl LoopState {
    pub fn length(&self) -> usize {
        self.items.len()
    }

    pub fn index0(&self) -> i128 {
        self.begun.get() as i128 - 1
    }
}

/// Where the statements go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering.
pub struct Run<'e> {
    pub environment: &'e Environment,
    /// Steps that are left, where they are bounded.
    steps: Option<u64>,
    level: usize,
    /// What `ExpressionKind::Captured` stands for.
    captured: Value,
    /// All that the template made: emptied at the end, as they may hold each other.
    namespaces: Vec<Rc<Namespace>>,
    closures: Vec<Rc<Scope>>,
}

/// Levels of statements, expressions and macros within each other.
const MOST_LEVELS: usize = 1500;
/// Bytes of output that count as a step.
const STEP_BYTES: usize = 64;

/// Bytes that a comparison may look at.
fn compared_bytes(comparison: Comparison, left: &Value, right: &Value) -> usize {
    match (comparison, right) {
        (Comparison::In | Comparison::NotIn, Value::Dict(_) | Value::View(_, View::Keys) | Value::Range(_)) => {
            left.size()
        }
        (Comparison::In | Comparison::NotIn, Value::Text(_)) => right.size(),
        (Comparison::In | Comparison::NotIn, _) => {
            right.length().map_or(0, |count| left.size().saturating_mul(count)).min(right.size())
        }
        _ => left.size().min(right.size()),
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            namespace.attributes.take();
        }
        for scope in &self.closures {
            scope.names.take();
        }
    }
}

impl<'e> Run<'e> {
    pub fn new(environment: &'e Environment) -> Run<'e> {
        Run {
            environment,
            steps: environment.steps,
            level: 0,
            captured: Value::None,
            namespaces: Vec::new(),
            closures: Vec::new(),
        }
    }

    /// Counts steps.
    ///
    /// # Errors
    ///
    /// None are left.
    pub fn step(&mut self, count: usize) -> Result<()> {
        let Some(left) = &mut self.steps else { return Ok(()) };
        match left.checked_sub(count as u64) {
            Some(rest) => *left = rest,
            None => return self.no_steps(),
        }
        Ok(())
    }

    /// The length of a text that is `times` as long as `length`, which is about to be made. Its steps are counted when
    /// it is there.
    ///
    /// # Errors
    ///
    /// It is too long for any memory that a template may take, or for the steps that are left.
    pub fn text_length(&self, length: usize, times: i128) -> Result<usize> {
        let length = operators::product(length, times)?;
        self.has_steps(length / STEP_BYTES)?;
        Ok(length)
    }

    /// The number of values of a list that is about to be made, as `text_length` of a text.
    ///
    /// # Errors
    ///
    /// As of a text's length.
    pub fn list_length(&self, length: usize, times: i128) -> Result<usize> {
        let length = operators::product(length.saturating_mul(VALUE_BYTES), times)? / VALUE_BYTES;
        self.has_steps(length)?;
        Ok(length)
    }

    fn has_steps(&self, count: usize) -> Result<()> {
        match self.steps.is_none_or(|left| left >= count as u64) {
            true => Ok(()),
            false => self.no_steps(),
        }
    }

    fn no_steps<T>(&self) -> Result<T> {
        let most = self.environment.steps.unwrap_or_default();
        fail(format!("it takes more than {most} steps: it does not end, or writes too much"))
    }

    /// Counts the steps of what reads a text from its begin to its end; of other values, none.
    pub fn read(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Text(text) => self.step(text.text.len() / STEP_BYTES),
            _ => Ok(()),
        }
    }

    /// Counts the steps of what reads all that a value holds.
    pub fn read_all(&mut self, value: &Value) -> Result<()> {
        self.step(value.size() / STEP_BYTES)
    }

    /// Counts the steps of what looks for an item among others.
    pub fn read_to_find(&mut self, among: &Value, item: &Value) -> Result<()> {
        self.step(compared_bytes(Comparison::In, item, among) / STEP_BYTES)
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.level == MOST_LEVELS {
            return fail("it nests too deeply: a macro or a loop calls itself again and again");
        }
        self.level += 1;
        let result = work(self);
        self.level -= 1;
        result
    }

    /// An error if an undefined value counts as one here.
    pub fn used(&self, value: &Value) -> Result<()> {
        match value {
            Value::Undefined(why) if self.environment.is_strict => undefined(why),
            _ => Ok(()),
        }
    }

    fn is_true(&self, value: &Value) -> Result<bool> {
        self.used(value)?;
        Ok(value.is_true())
    }

    pub fn namespace(&mut self, attributes: super::value::Dict) -> Value {
        let namespace = Rc::new(Namespace { attributes: RefCell::new(attributes) });
        self.namespaces.push(namespace.clone());
        Value::Namespace(namespace)
    }

    /// A new frame's names.
    pub fn frame(&mut self, frame: &Frame, around: &Rc<Scope>) -> Rc<Scope> {
        let scope = Scope::new(Some(around.clone()));
        frame.hidden.iter().for_each(|name| scope.hide(name.clone()));
        scope
    }

    fn run_frame(&mut self, frame: &Frame, around: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        let scope = self.frame(frame, around);
        self.run_all(&frame.body, &scope, out)
    }

    pub fn run_all(&mut self, statements: &[Statement], scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        self.deeper(|run| {
            for statement in statements {
                run.step(1)?;
                let flow = at_line(run.run(statement, scope, out), statement.line)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn write(&mut self, value: &Value, out: &mut String) -> Result<()> {
        let before = out.len();
        value.print(out)?;
        self.step((out.len() - before) / STEP_BYTES)
    }

    fn run(&mut self, statement: &Statement, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        match &statement.kind {
            StatementKind::Data(data) => {
                out.push_str(data);
                self.step(data.len() / STEP_BYTES)?;
            }
            StatementKind::Print(expression) => {
                let value = self.evaluate(expression, scope)?;
                self.used(&value)?;
                if self.environment.refuses_null && matches!(value, Value::None) {
                    return Err(fault(FaultKind::PrintsNull, "it prints null"));
                }
                self.write(&value, out)?;
            }
            StatementKind::For(of) => return self.run_for(of, scope, out),
            StatementKind::If(test, then, otherwise) => {
                let value = self.evaluate(test, scope)?;
                return match self.is_true(&value)? {
                    true => self.run_all(then, scope, out),
                    false => self.run_all(otherwise, scope, out),
                };
            }
            StatementKind::With(assignments, frame) => {
                let inner = self.frame(frame, scope);
                for (target, value) in assignments {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run_all(&frame.body, &inner, out);
            }
            StatementKind::Set(target, value) => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::SetBlock(target, filter, frame) => {
                let mut text = String::new();
                let flow = self.run_frame(frame, scope, &mut text)?;
                // What leaves the block leaves its text.
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let value = self.filtered(Value::text(text), filter.as_ref(), scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::FilterBlock(filter, frame) => {
                let mut text = String::new();
                let flow = self.run_frame(frame, scope, &mut text)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let value = self.filtered(Value::text(text), Some(filter), scope)?;
                self.write(&value, out)?;
            }
            StatementKind::Scope(frame) => return self.run_frame(frame, scope, out),
            StatementKind::Macro(node) => {
                let value = self.closure(Some(node.name.clone()), node, scope);
                scope.set(node.name.clone(), value);
            }
            StatementKind::Call(call, node) => {
                let caller = self.closure(None, node, scope);
                let callee = self.evaluate(&call.callee, scope)?;
                let mut arguments = self.arguments(&call.arguments, scope)?;
                arguments.named.push(("caller".into(), caller));
                let value = self.call(&callee, arguments)?;
                self.write(&value, out)?;
            }
            StatementKind::Generation(node) => {
                let body = self.closure(None, node, scope);
                let value = self.call(&body, Arguments::default())?;
                self.write(&value, out)?;
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn closure(&mut self, name: Option<Name>, node: &Rc<MacroNode>, scope: &Rc<Scope>) -> Value {
        if self.closures.last().is_none_or(|last| !Rc::ptr_eq(last, scope)) {
            self.closures.push(scope.clone());
        }
        Value::Macro(Rc::new(Macro { name, node: node.clone(), scope: scope.clone() }))
    }

    fn filtered(&mut self, text: Value, filter: Option<&Expression>, scope: &Rc<Scope>) -> Result<Value> {
        let Some(filter) = filter else { return Ok(text) };
        let outer = std::mem::replace(&mut self.captured, text);
        let value = self.evaluate(filter, scope);
        self.captured = outer;
        value
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name.clone(), value),
            Target::Attribute(of, name) => match self.name(of, scope) {
                Value::Namespace(namespace) => {
                    self.check_attribute(name)?;
                    namespace.attributes.borrow_mut().insert(Value::text(name.clone()), value)?;
                }
                other => {
                    return fail(format!(
                        "`{of}.{name}` is set, and `{of}` has the type {}: only namespaces have attributes to set",
                        other.type_name()
                    ));
                }
            },
            Target::Tuple(targets) => {
                let values = self.items(&value)?;
                if values.len() != targets.len() {
                    let (found, expected) = (values.len(), targets.len());
                    return fail(format!("{expected} names are assigned {found} values"));
                }
                targets.iter().zip(values).try_for_each(|(target, value)| self.assign(target, value, scope))?;
            }
        }
        Ok(())
    }

    /// transformers refuses such attributes of namespaces.
    pub fn check_attribute(&self, name: &str) -> Result<()> {
        match name.starts_with('_') {
            true => fail(format!("the namespace's attribute `{name}` begins with an underscore: rename it")),
            false => Ok(()),
        }
    }

    fn run_for(&mut self, of: &Rc<For>, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        let over = self.evaluate(&of.over, scope)?;
        let items = self.items(&over)?;
        self.run_loop(of, items, scope, 0, out)
    }

    fn run_loop(
        &mut self,
        of: &Rc<For>,
        mut items: Vec<Value>,
        scope: &Rc<Scope>,
        depth0: usize,
        out: &mut String,
    ) -> Result<Flow> {
        if let Some(test) = &of.only_if {
            let mut chosen = Vec::new();
            for item in items {
                let inner = Scope::new(Some(scope.clone()));
                self.assign(&of.target, item.clone(), &inner)?;
                let value = self.evaluate(test, &inner)?;
                if self.is_true(&value)? {
                    chosen.push(item);
                }
            }
            items = chosen;
        }
        let state = Rc::new(LoopState {
            extent: Extent::around(items.iter())?,
            items,
            begun: Cell::new(0),
            depth0,
            last_changed: RefCell::default(),
            recursion: of.is_recursive.then(|| (of.clone(), scope.clone())),
        });
        let name: Name = "loop".into();
        // As in jinja2: `else` is run unless an iteration came to its end, so also where all were left before.
        let mut has_ended = false;
        for item in &state.items {
            self.step(1)?;
            state.begun.set(state.begun.get() + 1);
            let inner = self.frame(&of.body, scope);
            inner.set(name.clone(), Value::Loop(state.clone()));
            self.assign(&of.target, item.clone(), &inner)?;
            match self.run_all(&of.body.body, &inner, out)? {
                Flow::Next => has_ended = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        if has_ended { Ok(Flow::Next) } else { self.run_frame(&of.otherwise, scope, out) }
    }

    /// `loop(items)`
    fn run_recursion(&mut self, state: &LoopState, arguments: Arguments) -> Result<Value> {
        let [items] = arguments.bound("`loop`", ["iterable"], 1)?;
        let Some((of, scope)) = &state.recursion else {
            return fail("`loop` is called, and the loop is not `recursive`");
        };
        let items = self.items(items.as_ref().expect("it is required"))?;
        let mut out = String::new();
        self.deeper(|run| run.run_loop(of, items, scope, state.depth0 + 1, &mut out))?;
        Ok(Value::text(out))
    }

    /// What a loop over the value gets. An iterator has nothing left then.
    ///
    /// # Errors
    ///
    /// The value is not iterable.
    pub fn items(&mut self, value: &Value) -> Result<Vec<Value>> {
        self.used(value)?;
        let items = match value {
            Value::Undefined(_) => Vec::new(),
            Value::List(sequence) | Value::Tuple(sequence) => sequence.items.clone(),
            Value::Dict(dict) => dict.keys().cloned().collect(),
            Value::View(dict, view) => dict.view(*view)?,
            Value::Text(text) => {
                self.list_length(text.text.chars().count(), 1)?;
                text.text.chars().map(|c| Value::text(c.encode_utf8(&mut [0; 4]) as &str)).collect()
            }
            Value::Range(range) => {
                self.step(range.len() as usize)?;
                (0..range.len()).map(|place| Value::Int(range.at(place))).collect()
            }
            Value::Iterator(lazy) => {
                let taken = lazy.state.replace(Items::Ready(std::collections::VecDeque::new()));
                match taken {
                    Items::Ready(items) => items.into(),
                    Items::Pending(filter, input, arguments) => {
                        self.deeper(|run| filter.computed(run, &input, &arguments))?
                    }
                }
            }
            other => return fail(format!("a value of the type {} is not iterable", other.type_name())),
        };
        self.step(items.len())?;
        Ok(items)
    }

    /// The first item, which an iterator then no longer has.
    pub fn first(&mut self, value: &Value) -> Result<Option<Value>> {
        let Value::Iterator(lazy) = value else {
            return Ok(self.items(value)?.into_iter().next());
        };
        let mut items: std::collections::VecDeque<Value> = self.items(value)?.into();
        let first = items.pop_front();
        lazy.state.replace(Items::Ready(items));
        Ok(first)
    }

    fn name(&mut self, name: &Name, scope: &Rc<Scope>) -> Value {
        let undefined = || Value::Undefined(Rc::new(Undefined::Name(name.clone())));
        match scope.get(name) {
            Some(found) => found.unwrap_or_else(undefined),
            None => Function::named(name).map_or_else(undefined, Value::Function),
        }
    }

    pub fn evaluate(&mut self, expression: &Expression, scope: &Rc<Scope>) -> Result<Value> {
        self.step(1)?;
        let value = self.deeper(|run| run.value_of(expression, scope));
        at_line(value, expression.line)
    }

    fn value_of(&mut self, expression: &Expression, scope: &Rc<Scope>) -> Result<Value> {
        match &expression.kind {
            ExpressionKind::Constant(value) => Ok(value.clone()),
            ExpressionKind::Captured => Ok(self.captured.clone()),
            ExpressionKind::Name(name) => Ok(self.name(name, scope)),
            ExpressionKind::List(items) => Value::list(self.all(items, scope)?),
            ExpressionKind::Tuple(items) => Value::tuple(self.all(items, scope)?),
            ExpressionKind::Dict(pairs) => self.dict(pairs, scope),
            ExpressionKind::Not(of) => {
                let value = self.evaluate(of, scope)?;
                Ok(Value::Bool(!self.is_true(&value)?))
            }
            ExpressionKind::Negative(of) => operators::negative(&self.evaluate(of, scope)?),
            ExpressionKind::Operator(operator, both) => {
                let [a, b] = self.both(both, scope)?;
                let value = operator.apply(self, &a, &b)?;
                self.charge(&value)?;
                Ok(value)
            }
            ExpressionKind::And(both) => {
                let first = self.evaluate(&both[0], scope)?;
                if self.is_true(&first)? { self.evaluate(&both[1], scope) } else { Ok(first) }
            }
            ExpressionKind::Or(both) => {
                let first = self.evaluate(&both[0], scope)?;
                if self.is_true(&first)? { Ok(first) } else { self.evaluate(&both[1], scope) }
            }
            ExpressionKind::Concatenation(both) => {
                let [a, b] = self.both(both, scope)?;
                self.used(&a)?;
                self.used(&b)?;
                if let (Value::Text(a), Value::Text(b)) = (&a, &b) {
                    self.text_length(a.text.len() + b.text.len(), 1)?;
                }
                let mut text = a.to_text()?;
                b.print(&mut text)?;
                self.text_length(text.len(), 1)?;
                self.step(text.len() / STEP_BYTES)?;
                Ok(Value::text(text))
            }
            ExpressionKind::Compare(first, others) => self.compare(first, others, scope),
            ExpressionKind::If { test, then, otherwise } => self.choice(test, then, otherwise.as_deref(), scope),
            ExpressionKind::Filter(filter, of, arguments) => {
                let value = self.evaluate(of, scope)?;
                let arguments = self.arguments(arguments, scope)?;
                match filter {
                    Named::Known(filter) => filter.apply(self, value, arguments),
                    Named::Unknown(name) => fail(format!("no filter is called `{name}`")),
                }
            }
            ExpressionKind::Test(test, of, arguments) => {
                let value = self.evaluate(of, scope)?;
                let arguments = self.arguments(arguments, scope)?;
                match test {
                    Named::Known(test) => Ok(Value::Bool(test.holds(self, &value, arguments)?)),
                    Named::Unknown(name) => fail(format!("no test is called `{name}`")),
                }
            }
            ExpressionKind::Attribute(of, name) => operators::attribute(&self.evaluate(of, scope)?, name),
            ExpressionKind::Item(both) => {
                let [of, key] = self.both(both, scope)?;
                self.read(&of)?;
                self.read(&key)?;
                operators::item(&of, &key)
            }
            ExpressionKind::Slice(of, bounds) => self.slice(of, bounds, scope),
            ExpressionKind::Call(call) => self.evaluate_call(call, scope),
        }
    }

    /// Counts the steps of a result: texts and lists by their length.
    pub fn charge(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Text(text) => self.step(text.text.len() / STEP_BYTES),
            Value::List(sequence) | Value::Tuple(sequence) => self.step(sequence.items.len()),
            _ => Ok(()),
        }
    }

    fn all(&mut self, expressions: &[Expression], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        expressions.iter().map(|expression| self.evaluate(expression, scope)).collect()
    }

    fn both(&mut self, [a, b]: &[Expression; 2], scope: &Rc<Scope>) -> Result<[Value; 2]> {
        Ok([self.evaluate(a, scope)?, self.evaluate(b, scope)?])
    }

    fn dict(&mut self, pairs: &[(Expression, Expression)], scope: &Rc<Scope>) -> Result<Value> {
        let mut dict = super::value::Dict::default();
        for (key, value) in pairs {
            let key = self.evaluate(key, scope)?;
            dict.insert(key, self.evaluate(value, scope)?)?;
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    fn compare(&mut self, first: &Expression, others: &[(Comparison, Expression)], scope: &Rc<Scope>) -> Result<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (comparison, other) in others {
            let right = self.evaluate(other, scope)?;
            self.used(&left)?;
            self.used(&right)?;
            if !self.holds(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub fn holds(&mut self, comparison: Comparison, left: &Value, right: &Value) -> Result<bool> {
        self.step(compared_bytes(comparison, left, right) / STEP_BYTES)?;
        match (comparison, right) {
            (Comparison::In | Comparison::NotIn, Value::Iterator(lazy)) => {
                let mut items: std::collections::VecDeque<Value> = self.items(right)?.into();
                let mut is_found = false;
                while let Some(item) = items.pop_front().filter(|_| !is_found) {
                    is_found = item.equals(left);
                    if is_found {
                        break;
                    }
                }
                lazy.state.replace(Items::Ready(items));
                Ok(is_found == (comparison == Comparison::In))
            }
            _ => comparison.apply(left, right),
        }
    }

    fn choice(
        &mut self,
        test: &Expression,
        then: &Expression,
        otherwise: Option<&Expression>,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let value = self.evaluate(test, scope)?;
        match (self.is_true(&value)?, otherwise) {
            (true, _) => self.evaluate(then, scope),
            (false, Some(otherwise)) => self.evaluate(otherwise, scope),
            (false, None) => Ok(Value::unnamed("an `if` without `else` gives nothing where its condition is false")),
        }
    }

    fn slice(&mut self, of: &Expression, bounds: &[Option<Expression>; 3], scope: &Rc<Scope>) -> Result<Value> {
        let of = self.evaluate(of, scope)?;
        let mut values = [Value::None, Value::None, Value::None];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                *value = self.evaluate(bound, scope)?;
            }
        }
        self.read(&of)?;
        let value = operators::slice(self, &of, [&values[0], &values[1], &values[2]])?;
        self.charge(&value)?;
        Ok(value)
    }

    fn evaluate_call(&mut self, call: &Call, scope: &Rc<Scope>) -> Result<Value> {
        let callee = self.evaluate(&call.callee, scope)?;
        let arguments = self.arguments(&call.arguments, scope)?;
        let value = self.call(&callee, arguments)?;
        self.charge(&value)?;
        Ok(value)
    }

    fn arguments(&mut self, arguments: &[Argument], scope: &Rc<Scope>) -> Result<Arguments> {
        let mut given = Arguments::default();
        for argument in arguments {
            let value = self.evaluate(argument.expression(), scope)?;
            match argument {
                Argument::Positional(_) => given.positional.push(value),
                Argument::All(_) => given.positional.extend(self.items(&value)?),
                Argument::Named(name, _) => self.name_argument(&mut given, name.clone(), value)?,
                Argument::AllNamed(_) => {
                    let Value::Dict(dict) = &value else {
                        return fail(format!("`**` takes a dict, not a value of the type {}", value.type_name()));
                    };
                    for (key, value) in dict.pairs() {
                        let Some(name) = key.as_text() else { return fail("`**` takes a dict with texts as keys") };
                        self.name_argument(&mut given, name.text.clone(), value.clone())?;
                    }
                }
            }
        }
        Ok(given)
    }

    fn name_argument(&mut self, given: &mut Arguments, name: Name, value: Value) -> Result<()> {
        if given.named.iter().any(|(own, _)| *own == name) {
            return fail(format!("the argument `{name}` is given twice"));
        }
        given.named.push((name, value));
        Ok(())
    }

    /// Calls a value.
    pub fn call(&mut self, callee: &Value, arguments: Arguments) -> Result<Value> {
        self.deeper(|run| match callee {
            Value::Method(method) => {
                run.read(&method.0)?;
                arguments.values().try_for_each(|value| run.read(value))?;
                methods::call(run, &method.0, method.1, arguments)
            }
            Value::Function(function) => function.call(run, arguments),
            Value::Macro(of) => run.call_macro(of, arguments),
            Value::Loop(state) => run.run_recursion(state, arguments),
            Value::Joiner(joiner) => {
                arguments.none("a joiner")?;
                Ok(if joiner.is_used.replace(true) { joiner.separator.clone() } else { Value::text("") })
            }
            Value::Undefined(why) => undefined(why),
            other => fail(format!("a value of the type {} is called, which is no function", other.type_name())),
        })
    }
}
