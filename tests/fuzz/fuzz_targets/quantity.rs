//! Quantities of any text: what is printed reads back as the same amount.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_config::Quantity;

fuzz_target!(|text: &str| {
    let Ok(quantity) = Quantity::parse(text) else { return };
    let _ = quantity.bytes();
    let printed = quantity.to_string();
    let again = Quantity::parse(&printed).expect("what is printed can be read");
    assert_eq!(again.to_decimal(), quantity.to_decimal(), "{text:?} is printed as {printed:?}");
    assert_eq!(again.to_string(), printed);
});
