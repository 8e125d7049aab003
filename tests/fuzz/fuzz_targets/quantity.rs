//! Quantities of any text: what is printed reads back as the same amount, but for those beyond all suffixes, which
//! Kubernetes prints without one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_units::Quantity;

fuzz_target!(|text: &str| {
    let Ok(quantity) = Quantity::parse(text) else { return };
    let _ = quantity.bytes();
    let printed = quantity.to_string();
    if quantity.to_decimal().len() < 20 {
        let again = Quantity::parse(&printed).expect("what is printed can be read");
        assert_eq!(again, quantity, "{text:?} is printed as {printed:?}");
    }
});
