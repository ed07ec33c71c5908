//! The Common Gateway Interface (RFC 3875), as far as it is text: what a program is told and how its
//! answer begins. Pure: starting programs and moving bytes is the business of others.

pub mod arguments;
pub mod head;
pub mod variables;
