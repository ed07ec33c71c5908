//! (to come)
pub mod control;
pub mod launch;
pub mod listeners;
pub mod machine;
pub mod notify;
