//! The fields of a message (RFC 9110 section 5).
/// Fields of a request, in order, borrowed from its bytes.
#[derive(Debug, Default)]
pub struct Fields<'a>(std::marker::PhantomData<&'a [u8]>);
