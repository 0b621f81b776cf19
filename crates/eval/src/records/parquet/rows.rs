//! The rows of a Parquet file as JSON lines: fields are put together again from the levels and values of their columns.

use std::fs::File;

use super::json::write_value;
use super::pages::Columns;
use super::schema::{Description, Node, Tree};
use super::why::{Why, why};

/// The rows of a file, from the first on.
pub(super) struct Rows {
    description: Description,
    columns: Columns,
    /// The row group that is read next, and what is left of the one before.
    group: usize,
    left: u64,
    /// Memory that pages may take, and the text of a few rows.
    most: usize,
}

impl Rows {
    pub fn open(mut file: File, length: u64, most: usize) -> Result<Rows, Why> {
        let description = Description::read(&mut file, length)?;
        let columns = Columns::of(file);
        Ok(Rows { description, columns, group: 0, left: 0, most })
    }

    /// Writes the next row as a line; false after the last.
    pub fn write_next(&mut self, out: &mut Vec<u8>) -> Result<bool, Why> {
        while self.left == 0 {
            let Some(group) = self.description.groups.get(self.group) else { return Ok(false) };
            self.columns.open(&self.description.leaves, &group.chunks, self.most);
            (self.left, self.group) = (group.rows, self.group + 1);
        }
        self.left -= 1;
        let mut row = Row { columns: &mut self.columns, most: self.most };
        row.object(&self.description.fields, out)?;
        out.push(b'\n');
        for column in 0..self.description.leaves.len() {
            if self.columns.peek(column)?.is_some_and(|level| level.repetition > 0) {
                let name = &self.columns.leaf(column).name;
                return why(format!("`{name}`: its rows end elsewhere than those of other columns"));
            }
        }
        Ok(true)
    }
}

/// The row that the columns are at.
struct Row<'c> {
    columns: &'c mut Columns,
    most: usize,
}

impl Row<'_> {
    fn object(&mut self, fields: &[(String, Tree)], out: &mut Vec<u8>) -> Result<(), Why> {
        out.push(b'{');
        for (ix, (name, field)) in fields.iter().enumerate() {
            if ix > 0 {
                out.push(b',');
            }
            serde_json::to_writer(&mut *out, name).expect("a text is JSON, and memory takes it");
            out.push(b':');
            self.tree(field, out)?;
        }
        out.push(b'}');
        Ok(())
    }

    fn tree(&mut self, tree: &Tree, out: &mut Vec<u8>) -> Result<(), Why> {
        match &tree.node {
            Node::Value(column) => self.value(*column, out),
            Node::Struct(fields, is_there) => {
                if self.definition(tree)? < *is_there {
                    return self.nothing(tree, b"null", out);
                }
                self.object(fields, out)
            }
            Node::List { item, is_there, has_items, repeats } => {
                let definition = self.definition(tree)?;
                if definition < *has_items {
                    let nothing: &[u8] = if definition < *is_there { b"null" } else { b"[]" };
                    return self.nothing(tree, nothing, out);
                }
                out.push(b'[');
                self.tree(item, out)?;
                while self.goes_on(tree, *repeats)? {
                    out.push(b',');
                    self.tree(item, out)?;
                }
                out.push(b']');
                Ok(())
            }
            Node::Map { key, value, is_there, has_items, repeats } => {
                let definition = self.definition(tree)?;
                if definition < *has_items {
                    let nothing: &[u8] = if definition < *is_there { b"null" } else { b"{}" };
                    return self.nothing(tree, nothing, out);
                }
                out.push(b'{');
                self.entry(key, value, out)?;
                while self.goes_on(tree, *repeats)? {
                    out.push(b',');
                    self.entry(key, value, out)?;
                }
                out.push(b'}');
                Ok(())
            }
        }
    }

    fn entry(&mut self, key: &Tree, value: &Tree, out: &mut Vec<u8>) -> Result<(), Why> {
        let begin = out.len();
        self.tree(key, out)?;
        if out.get(begin) != Some(&b'"') {
            let name = &self.columns.leaf(key.columns.0).name;
            return why(format!("`{name}`, the key of a map, is no text: JSON has no other keys"));
        }
        out.push(b':');
        self.tree(value, out)
    }

    fn value(&mut self, column: usize, out: &mut Vec<u8>) -> Result<(), Why> {
        let logical = self.columns.leaf(column).logical;
        if out.len() > self.most {
            return why(format!("a few rows take more than {} MiB of memory", self.most >> 20));
        }
        match self.columns.next(column)? {
            Some(bytes) => write_value(out, bytes, logical),
            None => {
                out.extend(b"null");
                Ok(())
            }
        }
    }

    /// The definition level of the next of a field's values.
    fn definition(&mut self, tree: &Tree) -> Result<i16, Why> {
        match self.columns.peek(tree.columns.0)? {
            Some(level) => Ok(level.definition),
            None => why(format!("`{}` has fewer values than rows", self.columns.leaf(tree.columns.0).name)),
        }
    }

    /// Whether one more item of a list follows.
    fn goes_on(&mut self, tree: &Tree, repeats: i16) -> Result<bool, Why> {
        Ok(self.columns.peek(tree.columns.0)?.is_some_and(|level| level.repetition == repeats))
    }

    /// Writes what stands for a field that is null or empty, for which each of its columns has one value.
    fn nothing(&mut self, tree: &Tree, text: &[u8], out: &mut Vec<u8>) -> Result<(), Why> {
        for column in tree.columns.0..tree.columns.1 {
            self.columns.next(column)?;
        }
        out.extend(text);
        Ok(())
    }
}
