//! How much a test tries: some cases, or all of a longer list where OFFSHOOT_FULL=1 is set, as `.ci/full` does.

/// `full` where the full lists are asked for, `some` elsewhere.
pub fn some_or_full<T>(some: T, full: T) -> T {
    if std::env::var_os("OFFSHOOT_FULL").is_some_and(|value| value == "1") { full } else { some }
}
