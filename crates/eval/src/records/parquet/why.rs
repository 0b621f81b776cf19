//! Why a Parquet file is not read, without its path.

/// Why a file is not read.
#[derive(Debug)]
pub struct Why(pub String);

impl Why {
    /// This reason with the name of the column it concerns.
    pub fn of(self, column: &str) -> Why {
        Why(format!("`{column}`: {}", self.0))
    }
}

pub fn why<T>(what: impl Into<String>) -> Result<T, Why> {
    Err(Why(what.into()))
}
