//! Writes what an answer says as one text, which parses to the same again: the key by which votes are counted. Units
//! are left out, and names where they distinguish nothing.

use crate::answer::latex::relation::{Name, Relation};
use crate::answer::latex::value::{Element, List, Value};

impl List {
    /// A single element as it is; several as a set.
    pub fn key(&self) -> String {
        let mut names: Vec<&Name> = self.elements.iter().filter_map(|element| element.name.as_ref()).collect();
        names.dedup();
        let mut keys: Vec<String> = self.elements.iter().map(|element| element.key(names.len() > 1)).collect();
        match &mut keys[..] {
            [one] => std::mem::take(one),
            several => braced(several),
        }
    }
}

fn braced(elements: &mut [String]) -> String {
    elements.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    format!("\\{{{}\\}}", elements.join(", "))
}

impl Element {
    /// `is_named`: the name distinguishes this element from others and is kept.
    pub fn key(&self, is_named: bool) -> String {
        match self.name.as_ref().filter(|_| is_named) {
            Some(name) => format!("{}{}{}", name.text(), name.sign().latex(), self.value.key()),
            None => self.value.key(),
        }
    }
}

impl Value {
    pub fn key(&self) -> String {
        match self {
            Value::Words(words) => words.clone(),
            Value::Expression(sum) => sum.latex(),
            Value::Set(elements) => {
                let list = List { elements: elements.clone(), has_and: false, has_or: false };
                match elements.len() {
                    1 => format!("\\{{{}\\}}", list.key()),
                    _ => list.key(),
                }
            }
            Value::Tuple { open, elements, close } => {
                let keys: Vec<String> = elements.iter().map(|element| element.key(true)).collect();
                format!("{open}{}{close}", keys.join(", "))
            }
            Value::Matrix(rows) => {
                let row = |row: &Vec<Value>| row.iter().map(Value::key).collect::<Vec<_>>().join(" & ");
                let rows: Vec<String> = rows.iter().map(row).collect();
                format!("\\begin{{pmatrix}}{}\\end{{pmatrix}}", rows.join(" \\\\ "))
            }
            Value::Union(united) => {
                let mut keys: Vec<String> = united.iter().map(Value::key).collect();
                keys.sort();
                keys.join(" \\cup ")
            }
            Value::Difference(set, without) => format!("{}\\setminus {}", set.key(), without.key()),
            Value::Ratio(parts) => parts.iter().map(|part| part.latex()).collect::<Vec<_>>().join(":"),
            Value::Relation(Relation::Compared { difference, sign }) => {
                format!("{}{}0", difference.latex(), sign.latex())
            }
            Value::Relation(Relation::Chain { values, signs }) => {
                let rest =
                    signs.iter().zip(&values[1..]).map(|(sign, value)| format!("{}{}", sign.latex(), value.key()));
                values[0].key() + &rest.collect::<String>()
            }
        }
    }
}
