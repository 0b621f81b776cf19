//! Arrow's C data interface: tables of this library as a stream of structs in C's layout, which pyarrow, pandas or
//! polars read without a copy. See <https://arrow.apache.org/docs/format/CDataInterface.html>; the names of fields are
//! its own.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use offshoot_eval::records::table::{Column, Data, Fields, Kind, Table};

/// Fields may be null.
const NULLABLE: i64 = 2;

#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// Tables of the same fields, one after the other.
#[repr(C)]
pub struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    private_data: *mut c_void,
}

// SAFETY: what it points to is a `StreamOwner` of its own, which may go to another thread.
unsafe impl Send for ArrowArrayStream {}

/// What a schema's pointers point to.
struct SchemaOwner {
    _format: CString,
    _name: CString,
    children: Vec<*mut ArrowSchema>,
}

/// What an array's pointers point to.
struct ArrayOwner {
    _table: Arc<Table>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
}

struct StreamOwner {
    fields: Fields,
    tables: std::vec::IntoIter<Arc<Table>>,
}

impl ArrowArrayStream {
    pub fn new(fields: Fields, tables: Vec<Arc<Table>>) -> ArrowArrayStream {
        let owner = Box::new(StreamOwner { fields, tables: tables.into_iter() });
        ArrowArrayStream {
            get_schema: Some(get_schema),
            get_next: Some(get_next),
            get_last_error: Some(get_last_error),
            release: Some(release_stream),
            private_data: Box::into_raw(owner).cast(),
        }
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        // A consumer that has moved the stream to a place of its own has left none here.
        if let Some(release) = self.release {
            // SAFETY: it is released once, as a released stream has no function for it.
            unsafe { release(self) };
        }
    }
}

impl ArrowSchema {
    fn new(name: &str, kind: &Kind) -> ArrowSchema {
        let (format, children) = match kind {
            Kind::Bool => (c"b", Vec::new()),
            Kind::I64 => (c"l", Vec::new()),
            Kind::U32 => (c"I", Vec::new()),
            Kind::F32 => (c"f", Vec::new()),
            Kind::F64 => (c"g", Vec::new()),
            Kind::Text => (c"u", Vec::new()),
            Kind::List(of) => (c"+l", vec![ArrowSchema::new("item", of)]),
            Kind::Struct(fields) => (c"+s", fields.iter().map(|(name, kind)| ArrowSchema::new(name, kind)).collect()),
        };
        let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
        let name = CString::new(name).expect("no field's name has a NUL");
        let mut owner = Box::new(SchemaOwner { _format: format.to_owned(), _name: name, children });
        ArrowSchema {
            format: owner._format.as_ptr(),
            name: owner._name.as_ptr(),
            metadata: ptr::null(),
            flags: NULLABLE,
            n_children: owner.children.len() as i64,
            children: owner.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: Box::into_raw(owner).cast(),
        }
    }
}

impl ArrowArray {
    /// The rows of `table` as one struct, which is itself never null.
    fn of_table(table: &Arc<Table>) -> ArrowArray {
        let children = table.columns.iter().map(|(_, column)| ArrowArray::of(table, column)).collect();
        ArrowArray::new(table, table.rows, 0, vec![ptr::null()], children)
    }

    fn of(table: &Arc<Table>, column: &Column) -> ArrowArray {
        let (buffers, children): (Vec<*const c_void>, Vec<ArrowArray>) = match &column.data {
            Data::Bool(values) => (vec![values.bytes().as_ptr().cast()], Vec::new()),
            Data::I64(values) => (vec![values.as_ptr().cast()], Vec::new()),
            Data::U32(values) => (vec![values.as_ptr().cast()], Vec::new()),
            Data::F32(values) => (vec![values.as_ptr().cast()], Vec::new()),
            Data::F64(values) => (vec![values.as_ptr().cast()], Vec::new()),
            Data::Text(ends, bytes) => (vec![ends.as_ptr().cast(), bytes.as_ptr().cast()], Vec::new()),
            Data::List(ends, items) => (vec![ends.as_ptr().cast()], vec![ArrowArray::of(table, items)]),
            Data::Struct(fields) => {
                (Vec::new(), fields.iter().map(|(_, field)| ArrowArray::of(table, field)).collect())
            }
        };
        let present = [column.present.bytes().as_ptr().cast()];
        let buffers = [&present[..], &buffers].concat();
        ArrowArray::new(table, column.data.len(), column.present.zeros(), buffers, children)
    }

    fn new(
        table: &Arc<Table>,
        length: usize,
        nulls: usize,
        buffers: Vec<*const c_void>,
        children: Vec<ArrowArray>,
    ) -> ArrowArray {
        let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
        // Each array keeps the table: a consumer may move a child out of its parent, and release the parent first.
        let mut owner = Box::new(ArrayOwner { _table: table.clone(), buffers, children });
        ArrowArray {
            length: length as i64,
            null_count: nulls as i64,
            offset: 0,
            n_buffers: owner.buffers.len() as i64,
            n_children: owner.children.len() as i64,
            buffers: owner.buffers.as_mut_ptr(),
            children: owner.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private_data: Box::into_raw(owner).cast(),
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the stream is not released, so that it has its owner, and `out` is room for a schema.
    unsafe {
        let owner = &*(*stream).private_data.cast::<StreamOwner>();
        out.write(ArrowSchema::new("", &Kind::Struct(owner.fields.clone())));
    }
    0
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: the stream is not released, so that it has its owner, and nobody else uses it meanwhile; `out` is room
    // for an array, and one that is released, of zeros, says that none is left.
    unsafe {
        let owner = &mut *(*stream).private_data.cast::<StreamOwner>();
        match owner.tables.next() {
            Some(table) => out.write(ArrowArray::of_table(&table)),
            None => out.write_bytes(0, 1),
        }
    }
    0
}

unsafe extern "C" fn get_last_error(_: *mut ArrowArrayStream) -> *const c_char {
    // Nothing fails here.
    ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: the stream is not released yet, and its owner was made by `Box::into_raw`.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<StreamOwner>()));
        (*stream).release = None;
    }
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the schema is not released yet; its owner and its children were made by `Box::into_raw`, and a child that
    // the consumer has moved elsewhere is marked as released.
    unsafe {
        let owner = Box::from_raw((*schema).private_data.cast::<SchemaOwner>());
        for child in &owner.children {
            let mut child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(&mut *child);
            }
        }
        (*schema).release = None;
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: as for a schema.
    unsafe {
        let owner = Box::from_raw((*array).private_data.cast::<ArrayOwner>());
        for child in &owner.children {
            let mut child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(&mut *child);
            }
        }
        (*array).release = None;
    }
}
