//! Bounded state over the shared store.

pub(crate) mod bytes;
pub mod census;
pub mod fleet;
pub mod keys;
pub mod load;
pub mod meta;
pub mod named;
pub mod names;
pub mod page;
pub mod pins;
pub mod placements;
pub mod report;
pub mod reporters;
pub mod rows;
pub mod tree;
pub mod turns;
