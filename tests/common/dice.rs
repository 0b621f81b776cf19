//! Seeded choices.

pub use offshoot::check::dice::Dice;
