//! Hands out and takes back page ids; knows its capacity and how many hold each page, nothing else.
pub struct PagePool {}
