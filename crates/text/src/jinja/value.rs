//! Values of templates, with Python's truth, equality, order and hashing. How they print is in `print`, what operators
//! make of them in `operators`.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde_json::Value as Json;

use super::call::{Arguments, Macro};
use super::fault::{Result, fail, undefined};
use super::filters::Filter;
use super::functions::Function;
use super::methods::Method;
use super::run::LoopState;

/// A value. Only namespaces, iterators, loops, cyclers and joiners change.
#[derive(Clone)]
pub enum Value {
    Undefined(Rc<Undefined>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Rc<Sequence>),
    Tuple(Rc<Sequence>),
    Dict(Rc<Dict>),
    /// What `keys()`, `values()` and `items()` of a dict give.
    View(Rc<Dict>, View),
    Range(Rc<Range>),
    Iterator(Rc<Lazy>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<LoopState>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    Function(Function),
    /// A method of a value, not called yet.
    Method(Rc<(Value, Method)>),
}

/// A text. One that is safe (`|safe`, `|escape`) escapes what is joined to it.
#[derive(Clone, Debug)]
pub struct Text {
    pub text: Rc<str>,
    pub is_safe: bool,
}

/// Why there is no value.
#[derive(Debug)]
pub enum Undefined {
    Name(Rc<str>),
    /// No attribute or item of a value of the type `of`.
    Missing {
        of: &'static str,
        name: String,
    },
    Because(String),
}

impl Undefined {
    pub fn message(&self) -> String {
        match self {
            Undefined::Name(name) => format!("`{name}` is undefined"),
            Undefined::Missing { of, name } => format!("a value of the type {of} has no `{name}`"),
            Undefined::Because(why) => why.clone(),
        }
    }
}

/// The items of a list or tuple.
pub struct Sequence {
    pub items: Vec<Value>,
    extent: Extent,
    /// A pair of `groupby`, whose parts have the names `grouper` and `list`.
    pub is_group: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum View {
    Keys,
    Values,
    Items,
}

/// What `range()` makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Range {
    start: i128,
    stop: i128,
    /// Not 0.
    step: i128,
}

impl Range {
    /// # Errors
    ///
    /// The step is 0, or a number between start and stop may have more than 127 bits.
    pub fn new(start: i128, stop: i128, step: i128) -> Result<Range> {
        if step == 0 {
            return fail("`range` takes a step that is not 0");
        }
        if stop.checked_sub(start).and_then(i128::checked_abs).is_none() || step == i128::MIN {
            return fail("a range spans an integer of more than 127 bits");
        }
        Ok(Range { start, stop, step })
    }

    pub fn bounds(&self) -> [i128; 3] {
        [self.start, self.stop, self.step]
    }

    pub fn len(&self) -> i128 {
        let span = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        if span <= 0 { 0 } else { (span - 1) / self.step.abs() + 1 }
    }

    /// The number at this place, which is below the length.
    pub fn at(&self, place: i128) -> i128 {
        self.start + place * self.step
    }

    pub fn contains(&self, int: i128) -> bool {
        let is_inside = match self.step > 0 {
            true => self.start <= int && int < self.stop,
            false => self.stop < int && int <= self.start,
        };
        is_inside && (int - self.start) % self.step == 0
    }

    /// The range of the numbers at these places, which are within this one's length or at its ends.
    pub fn sliced(&self, places: &Range) -> Result<Range> {
        let at = |place: i128| self.step.checked_mul(place)?.checked_add(self.start);
        match (at(places.start), at(places.stop), self.step.checked_mul(places.step)) {
            (Some(start), Some(stop), Some(step)) => Range::new(start, stop, step),
            _ => fail("a slice of a range has a bound of more than 127 bits"),
        }
    }
}

/// An iterator, whose items are computed when the first one is asked for, and are gone when they were taken.
pub struct Lazy {
    /// As Python calls it.
    pub kind: &'static str,
    pub state: RefCell<Items>,
    extent: Extent,
}

pub enum Items {
    Pending(Filter, Value, Arguments),
    Ready(VecDeque<Value>),
}

impl Lazy {
    pub fn ready(kind: &'static str, items: Vec<Value>) -> Result<Value> {
        let extent = Extent::around(items.iter())?;
        Ok(Value::Iterator(Rc::new(Lazy { kind, state: RefCell::new(Items::Ready(items.into())), extent })))
    }

    pub fn pending(filter: Filter, input: Value, arguments: Arguments) -> Result<Value> {
        let extent = Extent::around([&input].into_iter().chain(arguments.values()))?;
        let state = RefCell::new(Items::Pending(filter, input, arguments));
        Ok(Value::Iterator(Rc::new(Lazy { kind: "generator", state, extent })))
    }
}

/// `namespace()`: the one thing whose attributes a template can set.
pub struct Namespace {
    pub attributes: RefCell<Dict>,
}

pub struct Cycler {
    pub items: Vec<Value>,
    pub extent: Extent,
    pub place: Cell<usize>,
}

pub struct Joiner {
    pub separator: Value,
    pub is_used: Cell<bool>,
}

/// Bytes that a value may take: in memory, and when it is shown.
pub const MOST_BYTES: usize = 1 << 28;
/// Bytes of a value without its text or its items.
pub const VALUE_BYTES: usize = size_of::<Value>();

/// How deep and how large a value is, which bounds all that walks through it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Extent {
    /// Levels of containers. Of a dict whose entries were replaced, the most that it had.
    levels: u32,
    /// Bytes of values and texts in all levels; what is held twice counts twice.
    size: u64,
}

impl Extent {
    /// Python ends at about as many levels.
    const MOST_LEVELS: u32 = 900;
    /// Of a value that holds no others.
    const ONE: Extent = Extent { levels: 0, size: VALUE_BYTES as u64 };

    /// Of a container of these values.
    pub fn around<'a>(values: impl Iterator<Item = &'a Value>) -> Result<Extent> {
        let mut around = Extent::ONE;
        for value in values {
            around = around.with(value.extent());
        }
        around.levels += 1;
        around.checked()
    }

    fn with(self, other: Extent) -> Extent {
        Extent { levels: self.levels.max(other.levels), size: self.size.saturating_add(other.size) }
    }

    /// Of what holds one value of this extent.
    fn above(self, held: Extent) -> Extent {
        Extent { levels: self.levels + held.levels, size: self.size.saturating_add(held.size) }
    }

    fn checked(self) -> Result<Extent> {
        if self.levels > Extent::MOST_LEVELS {
            return fail(format!("a value nests too deeply: {} levels are the most", Extent::MOST_LEVELS));
        }
        if self.size > MOST_BYTES as u64 {
            return fail(format!("a value grows too large: {MOST_BYTES} bytes are the most"));
        }
        Ok(self)
    }
}

impl Value {
    pub fn text(text: impl Into<Rc<str>>) -> Value {
        Value::Text(Text { text: text.into(), is_safe: false })
    }

    pub fn safe(text: impl Into<Rc<str>>) -> Value {
        Value::Text(Text { text: text.into(), is_safe: true })
    }

    pub fn list(items: Vec<Value>) -> Result<Value> {
        let extent = Extent::around(items.iter())?;
        Ok(Value::List(Rc::new(Sequence { items, extent, is_group: false })))
    }

    pub fn tuple(items: Vec<Value>) -> Result<Value> {
        let extent = Extent::around(items.iter())?;
        Ok(Value::Tuple(Rc::new(Sequence { items, extent, is_group: false })))
    }

    /// A pair of `groupby`.
    pub fn group(key: Value, list: Value) -> Result<Value> {
        let items = vec![key, list];
        let extent = Extent::around(items.iter())?;
        Ok(Value::Tuple(Rc::new(Sequence { items, extent, is_group: true })))
    }

    pub fn unnamed(why: impl Into<String>) -> Value {
        Value::Undefined(Rc::new(Undefined::Because(why.into())))
    }

    pub fn missing(of: &Value, name: impl Into<String>) -> Value {
        Value::Undefined(Rc::new(Undefined::Missing { of: of.type_name(), name: name.into() }))
    }

    /// Of JSON, as Python's json module reads it.
    pub fn of_json(json: &Json) -> Result<Value> {
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(is) => Value::Bool(*is),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Value::Int(int.into()),
                (None, Some(int)) => Value::Int(int.into()),
                (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::text(text.as_str()),
            Json::Array(items) => Value::list(items.iter().map(Value::of_json).collect::<Result<_>>()?)?,
            Json::Object(fields) => {
                let mut dict = Dict::default();
                for (name, value) in fields {
                    dict.insert(Value::text(name.as_str()), Value::of_json(value)?)?;
                }
                Value::Dict(Rc::new(dict))
            }
        })
    }

    /// Bytes of the value and of all that it holds.
    pub fn size(&self) -> usize {
        usize::try_from(self.extent().size).unwrap_or(usize::MAX)
    }

    fn extent(&self) -> Extent {
        let holder = Extent { levels: 1, ..Extent::ONE };
        match self {
            Value::Text(text) => Extent { levels: 0, size: (VALUE_BYTES + text.text.len()) as u64 },
            Value::List(sequence) | Value::Tuple(sequence) => sequence.extent,
            Value::Dict(dict) | Value::View(dict, _) => dict.extent,
            Value::Iterator(lazy) => lazy.extent,
            Value::Method(method) => holder.above(method.0.extent()),
            Value::Loop(state) => state.extent,
            Value::Cycler(cycler) => cycler.extent,
            Value::Joiner(joiner) => holder.above(joiner.separator.extent()),
            _ => Extent::ONE,
        }
    }

    /// The type's name in Python.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(text) if text.is_safe => "Markup",
            Value::Text(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(_, View::Keys) => "dict_keys",
            Value::View(_, View::Values) => "dict_values",
            Value::View(_, View::Items) => "dict_items",
            Value::Range(_) => "range",
            Value::Iterator(lazy) => lazy.kind,
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
            Value::Function(_) => "function",
            Value::Method(_) => "method",
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    pub fn as_text(&self) -> Option<&Text> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// A number as an integer, as where Python asks for an index: True is 1.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(int) => Some(*int),
            Value::Bool(is) => Some((*is).into()),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<Number> {
        match self {
            Value::Float(float) => Some(Number::Float(*float)),
            other => other.as_int().map(Number::Int),
        }
    }

    /// `bool(value)`.
    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(is) => *is,
            Value::Int(int) => *int != 0,
            Value::Float(float) => *float != 0.0,
            Value::Text(text) => !text.text.is_empty(),
            Value::List(sequence) | Value::Tuple(sequence) => !sequence.items.is_empty(),
            Value::Dict(dict) | Value::View(dict, _) => dict.len() > 0,
            Value::Range(range) => range.len() > 0,
            Value::Loop(state) => state.length() > 0,
            _ => true,
        }
    }

    /// `len(value)`, where the value has one.
    pub fn length(&self) -> Option<usize> {
        match self {
            Value::Undefined(_) => Some(0),
            Value::Text(text) => Some(text.text.chars().count()),
            Value::List(sequence) | Value::Tuple(sequence) => Some(sequence.items.len()),
            Value::Dict(dict) | Value::View(dict, _) => Some(dict.len()),
            Value::Range(range) => usize::try_from(range.len()).ok(),
            Value::Loop(state) => Some(state.length()),
            _ => None,
        }
    }

    /// Whether `callable(value)`.
    pub fn is_callable(&self) -> bool {
        matches!(
            self,
            Value::Undefined(_)
                | Value::Macro(_)
                | Value::Loop(_)
                | Value::Joiner(_)
                | Value::Function(_)
                | Value::Method(_)
        )
    }

    /// `a is b`.
    pub fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::None, Value::None) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            // Python keeps one object of each small integer.
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => a.text == b.text && a.is_safe == b.is_safe,
            _ => match (self.address(), other.address()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        }
    }

    fn address(&self) -> Option<usize> {
        fn of<T: ?Sized>(rc: &Rc<T>) -> Option<usize> {
            Some(Rc::as_ptr(rc).cast::<()>() as usize)
        }
        match self {
            Value::List(rc) | Value::Tuple(rc) => of(rc),
            Value::Dict(rc) => of(rc),
            Value::Undefined(rc) => of(rc),
            Value::Range(rc) => of(rc),
            Value::Iterator(rc) => of(rc),
            Value::Namespace(rc) => of(rc),
            Value::Macro(rc) => of(rc),
            Value::Loop(rc) => of(rc),
            Value::Cycler(rc) => of(rc),
            Value::Joiner(rc) => of(rc),
            Value::Method(rc) => of(rc),
            Value::Function(function) => Some(function.number()),
            _ => None,
        }
    }

    /// `a == b`.
    pub fn equals(&self, other: &Value) -> bool {
        if let (Some(a), Some(b)) = (self.as_number(), other.as_number()) {
            return a.compare(b) == Some(Ordering::Equal);
        }
        match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => a.text == b.text,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                let same = |(a, b): (&Value, &Value)| a.is_same(b) || a.equals(b);
                Rc::ptr_eq(a, b) || a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(same)
            }
            (Value::Dict(a), Value::Dict(b)) => {
                let has = |(key, _, value): &(Key, Value, Value)| b.find(key).is_some_and(|other| value.equals(other));
                Rc::ptr_eq(a, b) || a.len() == b.len() && a.entries.iter().all(has)
            }
            (Value::Range(a), Value::Range(b)) => {
                let count = a.len();
                let is_empty = count == 0;
                count == b.len() && (is_empty || a.start == b.start && (count == 1 || a.step == b.step))
            }
            (Value::View(a, View::Keys), Value::View(b, View::Keys)) => {
                a.len() == b.len() && a.entries.iter().all(|(key, ..)| b.find(key).is_some())
            }
            (Value::Method(a), Value::Method(b)) => a.1 == b.1 && a.0.is_same(&b.0),
            _ => self.is_same(other),
        }
    }

    /// The order of two values; None of NaN.
    ///
    /// # Errors
    ///
    /// Python does not order values of these types.
    pub fn compare(&self, other: &Value, symbol: &str) -> Result<Option<Ordering>> {
        if let (Some(a), Some(b)) = (self.as_number(), other.as_number()) {
            return Ok(a.compare(b));
        }
        match (self, other) {
            (Value::Undefined(why), _) | (_, Value::Undefined(why)) => undefined(why),
            (Value::Text(a), Value::Text(b)) => Ok(Some(a.text.cmp(&b.text))),
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.is_same(b) && !a.equals(b) {
                        return a.compare(b, symbol);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            _ => fail(format!("`{symbol}` does not order {} and {}", self.type_name(), other.type_name())),
        }
    }

    /// `a < b`, as sorting asks.
    pub fn is_less(&self, other: &Value) -> Result<bool> {
        Ok(self.compare(other, "<")? == Some(Ordering::Less))
    }
}

/// A number of Python's: True counts as 1.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub fn as_float(self) -> f64 {
        match self {
            Number::Int(int) => int as f64,
            Number::Float(float) => float,
        }
    }

    /// The exact order, also of an integer that no float equals.
    fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
            (Number::Float(_), Number::Int(_)) => other.compare(self).map(Ordering::reverse),
            (Number::Int(a), Number::Float(b)) if b.abs() < 1e38 => {
                let whole = b.trunc();
                let fraction = 0.0.partial_cmp(&(b - whole));
                Some(a.cmp(&(whole as i128)).then(fraction.unwrap_or(Ordering::Equal)))
            }
            (Number::Int(_), Number::Float(b)) => 0.0.partial_cmp(&b),
        }
    }
}

/// What a dict finds a value by: equal values of Python have equal keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Key {
    None,
    Undefined,
    Int(i128),
    Float(u64),
    Text(Rc<str>),
    Tuple(Vec<Key>),
    Address(usize),
}

impl Key {
    pub fn of(value: &Value) -> Result<Key> {
        Ok(match value {
            Value::None => Key::None,
            Value::Undefined(_) => Key::Undefined,
            Value::Bool(_) | Value::Int(_) => Key::Int(value.as_int().expect("these are integers")),
            Value::Float(float) if float.fract() == 0.0 && float.abs() < 1e38 => Key::Int(*float as i128),
            Value::Float(float) => Key::Float(float.to_bits()),
            Value::Text(text) => Key::Text(text.text.clone()),
            Value::Tuple(tuple) => Key::Tuple(tuple.items.iter().map(Key::of).collect::<Result<_>>()?),
            other => match other {
                Value::List(_) | Value::Dict(_) | Value::View(..) => {
                    return fail(format!("a {} cannot be the key of a dict", other.type_name()));
                }
                _ => Key::Address(other.address().expect("what is left has one")),
            },
        })
    }
}

/// The integer of a float without its fraction; None: it has more than 127 bits, or the float is not finite.
pub fn int_of_float(float: f64) -> Option<i128> {
    (float.abs() < 1e38).then(|| float.trunc() as i128)
}

/// A dict: it keeps the order of its keys.
#[derive(Default, Clone)]
pub struct Dict {
    /// Each with what it is found by.
    entries: Vec<(Key, Value, Value)>,
    /// Of dicts of more than `LINEAR` entries.
    places: HashMap<Key, usize>,
    extent: Extent,
}

/// Entries of a dict that are searched one after the other.
const LINEAR: usize = 12;

impl Dict {
    pub fn of(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Dict> {
        let mut dict = Dict::default();
        pairs.into_iter().try_for_each(|(key, value)| dict.insert(key, value))?;
        Ok(dict)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        let found_by = Key::of(&key)?;
        let around = Extent::around([&key, &value].into_iter())?;
        if let Some(place) = self.place(&found_by) {
            // The key stays, and counts already.
            let (_, key, old) = &mut self.entries[place];
            let gone = Extent::around([&*key, &*old].into_iter())?;
            let kept = Extent { levels: self.extent.levels, size: self.extent.size - gone.size };
            self.extent = kept.with(Extent::around([&*key, &value].into_iter())?).checked()?;
            *old = value;
            return Ok(());
        }
        self.extent = self.extent.with(around).checked()?;
        self.entries.push((found_by.clone(), key, value));
        if self.entries.len() > LINEAR {
            if self.places.is_empty() {
                self.places = self.entries.iter().enumerate().map(|(place, entry)| (entry.0.clone(), place)).collect();
            } else {
                self.places.insert(found_by, self.entries.len() - 1);
            }
        }
        Ok(())
    }

    fn place(&self, key: &Key) -> Option<usize> {
        if self.entries.len() > LINEAR {
            return self.places.get(key).copied();
        }
        self.entries.iter().position(|entry| entry.0 == *key)
    }

    pub fn find(&self, key: &Key) -> Option<&Value> {
        self.place(key).map(|place| &self.entries[place].2)
    }

    pub fn get(&self, key: &Value) -> Result<Option<&Value>> {
        Ok(self.find(&Key::of(key)?))
    }

    pub fn get_text(&self, key: &str) -> Option<&Value> {
        if self.entries.len() > LINEAR {
            return self.find(&Key::Text(key.into()));
        }
        let has = |entry: &&(Key, Value, Value)| matches!(&entry.0, Key::Text(text) if **text == *key);
        self.entries.iter().find(has).map(|entry| &entry.2)
    }

    pub fn pairs(&self) -> impl DoubleEndedIterator<Item = (&Value, &Value)> {
        self.entries.iter().map(|(_, key, value)| (key, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.entries.iter().map(|(_, key, _)| key)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.entries.iter().map(|(.., value)| value)
    }

    /// What a loop over this view gets.
    pub fn view(&self, view: View) -> Result<Vec<Value>> {
        match view {
            View::Keys => Ok(self.keys().cloned().collect()),
            View::Values => Ok(self.values().cloned().collect()),
            View::Items => self.pairs().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect(),
        }
    }
}
