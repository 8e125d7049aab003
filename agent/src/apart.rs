//! The code that the core does not run once it watches, and constants that it does not read, as the program is linked (`apart.ld`).
#![expect(unsafe_code, reason = "the linker gives addresses as variables that are never read")]

use std::ops::Range;

unsafe extern "C" {
    static plimsoll_apart_begin: u8;
    static plimsoll_apart_end: u8;
    static plimsoll_apart_constants_begin: u8;
    static plimsoll_apart_constants_end: u8;
}

/// Where both are in memory.
pub(crate) fn parts() -> [Range<usize>; 2] {
    [code(), constants()]
}

fn code() -> Range<usize> {
    let [begin, end] = [&raw const plimsoll_apart_begin, &raw const plimsoll_apart_end];
    begin.addr()..end.addr()
}

fn constants() -> Range<usize> {
    let [begin, end] = [&raw const plimsoll_apart_constants_begin, &raw const plimsoll_apart_constants_end];
    begin.addr()..end.addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests have all of the program's code in them, as it is linked.
    #[test]
    fn what_prints_is_in_it_and_what_decides_is_not() {
        let code = code();
        let has = |address: *const ()| code.contains(&address.addr());
        assert!(has(crate::explain::main as fn(_) -> _ as *const ()), "{code:?}");
        assert!(
            !has(crate::core::main as fn(_) -> _ as *const ()) && !has(plimsoll_node::clock::monotonic as *const ())
        );
        // Of the standard library by the types that it is compiled for, but for what may be one with that for others.
        assert!(has(std::ptr::drop_in_place::<serde_json::Value> as unsafe fn(_) as *const ()), "{code:?}");
        assert!(!has(std::sync::Mutex::<serde_json::Value>::lock as fn(_) -> _ as *const ()), "{code:?}");
    }

    /// Of 150 KiB are the points that signatures are computed with.
    #[test]
    fn constants_of_cryptography_are_in_it() {
        assert!(constants().len() > 150 << 10, "{:?}", constants());
    }
}
