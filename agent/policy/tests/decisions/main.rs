//! Decisions about cgroups, as tables: what is observed, and what the plan says.

mod growth;
mod owners;
mod rig;
mod thresholds;
mod unaccounted;
