//! Type information of any bytes: an answer or an error, never a panic and never without end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_sense::btf::Btf;

fuzz_target!(|data: &[u8]| {
    let Ok(btf) = Btf::parse(data.to_vec()) else { return };
    for (structure, path) in [("outer", "y"), ("outer", "z[1]"), ("mem_cgroup", "css.cgroup"), ("s", "x.y[2].z")] {
        let _ = btf.offset(structure, path);
    }
    let _ = btf.enumerator("choice", "TWO");
    let _ = btf.has_function("work");
    let _ = btf.has_tracepoint("work");
});
