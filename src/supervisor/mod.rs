//! (to come)
pub mod machine;
