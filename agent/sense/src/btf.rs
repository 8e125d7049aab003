//! Where the members of the running kernel's structs are, read from the type information that it carries.
//!
//! The kernel programs are compiled once; what differs between kernels is found here at start and handed to them before
//! they are loaded. The input is not trusted to be well formed: every access is bounded, and broken input is an error,
//! never a panic. Nothing here keeps state between calls or reads more than the bytes that it was given.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// The header's part that every version has.
const HEADER: usize = 24;
/// Modifiers in a row, and anonymous structs in each other; the kernel's own stay far below.
const DEPTH: u32 = 32;

/// What was searched for, and why it was not found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BtfError {
    /// The kernel's type information cannot be read.
    #[error("cannot read {path}: {error}; the kernel needs CONFIG_DEBUG_INFO_BTF")]
    Unreadable {
        /// From where.
        path: String,
        /// What the kernel answered.
        error: String,
    },
    /// The bytes are no type information, or end too early.
    #[error("broken type information at byte {at}: {what}")]
    Broken {
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// Nothing has this name.
    #[error("this kernel has no {what} `{name}`")]
    Missing {
        /// Struct, member, enum or enumerator.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Several structs of this name disagree about the member.
    #[error("several structs `{name}` in this kernel disagree about `{path}`")]
    Ambiguous {
        /// The struct.
        name: String,
        /// The member.
        path: String,
    },
    /// The member is a bit field, which has no address.
    #[error("`{path}` in struct `{name}` is a bit field")]
    BitField {
        /// The struct.
        name: String,
        /// The member.
        path: String,
    },
    /// Modifiers or anonymous members nest without end.
    #[error("types nest deeper than {DEPTH}")]
    TooDeep,
}

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// One type's fixed part.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    entries: u32,
    flag: bool,
    /// A size for kinds that have one, another type for kinds that point to one.
    size_or_target: u32,
    /// Where what follows the fixed part begins.
    rest: usize,
}

/// A kernel's type information, indexed by name.
pub struct Btf {
    data: Vec<u8>,
    strings: std::ops::Range<usize>,
    /// Where each type begins; type 0 is `void` and not stored.
    types: Vec<u32>,
    /// Hash of the name and type, sorted: structs, unions, enums, functions and typedefs.
    names: Vec<(u32, u32)>,
}

impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Btf").field("bytes", &self.data.len()).field("types", &self.types.len()).finish_non_exhaustive()
    }
}

/// One step of a member path.
enum Step<'a> {
    Member(&'a str),
    Element(u32),
}

/// `rss_stat[1].count` as member, element, member.
fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split('.').flat_map(|part| {
        let (name, index) = part.split_once('[').map_or((part, None), |(name, rest)| (name, Some(rest)));
        let element = index.map(|rest| Step::Element(rest.trim_end_matches(']').parse().unwrap_or(u32::MAX)));
        std::iter::once(Step::Member(name)).chain(element)
    })
}

fn hash(name: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash is still one")]
    let half = hasher.finish() as u32;
    half
}

impl Btf {
    /// From a file of raw type information.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let data = fs::read(path)
            .map_err(|error| BtfError::Unreadable { path: path.display().to_string(), error: error.to_string() })?;
        Self::parse(data)
    }

    /// Checks the whole of `data` for bounds and indexes its names.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let broken = |what, at| BtfError::Broken { what, at };
        let magic = data.get(..2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        if magic != Some(MAGIC) {
            return Err(broken("no magic number in this machine's byte order", 0));
        }
        if data.get(2) != Some(&VERSION) {
            return Err(broken("unknown version", 2));
        }
        let header = word(&data, 4)? as usize;
        if header < HEADER {
            return Err(broken("the header is too short", 4));
        }
        let section = |at| -> Result<std::ops::Range<usize>, BtfError> {
            let start = header.checked_add(word(&data, at)? as usize);
            let end = start.and_then(|start| start.checked_add(word(&data, at + 4).ok()? as usize));
            match (start, end) {
                (Some(start), Some(end)) if end <= data.len() => Ok(start..end),
                _ => Err(broken("a section lies beyond the end", at)),
            }
        };
        let (types, strings) = (section(8)?, section(16)?);
        let mut btf = Self { data, strings, types: Vec::new(), names: Vec::new() };
        btf.index(types)?;
        Ok(btf)
    }

    fn index(&mut self, section: std::ops::Range<usize>) -> Result<(), BtfError> {
        let broken = |what, at| BtfError::Broken { what, at };
        let mut at = section.start;
        while at < section.end {
            let found = self.type_at(at)?;
            let entry = match found.kind {
                ARRAY => 12,
                INT | VAR | DECL_TAG => 4,
                STRUCT | UNION | DATASEC | ENUM64 => 12 * found.entries as usize,
                ENUM | FUNC_PROTO => 8 * found.entries as usize,
                PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
                _ => return Err(broken("a type of unknown kind", at)),
            };
            let start = u32::try_from(at).map_err(|_| broken("too large", at))?;
            self.types.push(start);
            if matches!(found.kind, STRUCT | UNION | ENUM | ENUM64 | FUNC | TYPEDEF) {
                let id = u32::try_from(self.types.len()).map_err(|_| broken("too many types", at))?;
                let name = self.name(found.name)?;
                if !name.is_empty() {
                    self.names.push((hash(name), id));
                }
            }
            at = found.rest + entry;
        }
        if at != section.end {
            return Err(broken("the last type ends beyond its section", at));
        }
        self.names.sort_unstable();
        Ok(())
    }

    fn type_at(&self, at: usize) -> Result<Type, BtfError> {
        let info = word(&self.data, at + 4)?;
        Ok(Type {
            name: word(&self.data, at)?,
            kind: (info >> 24) & 0x1f,
            entries: info & 0xffff,
            flag: info >> 31 != 0,
            size_or_target: word(&self.data, at + 8)?,
            rest: at + 12,
        })
    }

    fn type_of(&self, id: u32) -> Result<Type, BtfError> {
        let at = (id as usize).checked_sub(1).and_then(|index| self.types.get(index));
        self.type_at(*at.ok_or(BtfError::Broken { what: "a type that does not exist", at: id as usize })? as usize)
    }

    fn name(&self, offset: u32) -> Result<&[u8], BtfError> {
        let strings = self.data.get(self.strings.clone()).unwrap_or_default();
        let from = strings
            .get(offset as usize..)
            .ok_or(BtfError::Broken { what: "a name beyond the strings", at: offset as usize })?;
        let end = from
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(BtfError::Broken { what: "a name without an end", at: offset as usize })?;
        Ok(&from[..end])
    }

    /// All types of one of these kinds with this name.
    fn named<'a>(&'a self, name: &'a str, kinds: &'a [u32]) -> impl Iterator<Item = (u32, Type)> + 'a {
        let wanted = hash(name.as_bytes());
        let first = self.names.partition_point(|(hash, _)| *hash < wanted);
        self.names[first..].iter().take_while(move |(hash, _)| *hash == wanted).filter_map(move |(_, id)| {
            let found = self.type_of(*id).ok()?;
            (kinds.contains(&found.kind) && self.name(found.name).ok()? == name.as_bytes()).then_some((*id, found))
        })
    }

    /// Whether the kernel has a function of this name that tracing programs can name.
    pub fn has_function(&self, name: &str) -> bool {
        self.named(name, &[FUNC]).next().is_some()
    }

    /// Whether the kernel has a tracepoint of this name with typed arguments.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.named(&format!("btf_trace_{name}"), &[TYPEDEF]).next().is_some()
    }

    /// The byte offset of a member: `offset("mem_cgroup", "css.cgroup")`, `offset("mm_struct", "rss_stat[1].count")`.
    /// Members of anonymous structs and unions are found as C finds them.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u32, BtfError> {
        let mut answer = None;
        for (id, _) in self.named(structure, &[STRUCT, UNION]) {
            let here = self.offset_in(id, structure, path);
            match &answer {
                None => answer = Some(here),
                Some(before) if *before == here => {}
                Some(_) => return Err(BtfError::Ambiguous { name: structure.into(), path: path.into() }),
            }
        }
        answer.unwrap_or_else(|| Err(BtfError::Missing { what: "struct", name: structure.into() }))
    }

    fn offset_in(&self, mut id: u32, structure: &str, path: &str) -> Result<u32, BtfError> {
        let missing = || BtfError::Missing { what: "member", name: format!("{structure}.{path}") };
        let mut bits = 0_u64;
        for step in steps(path) {
            let (peeled, found) = self.peel(id)?;
            match step {
                Step::Member(name) => {
                    if !matches!(found.kind, STRUCT | UNION) {
                        return Err(missing());
                    }
                    let member = self.member(peeled, name.as_bytes(), DEPTH)?.ok_or_else(missing)?;
                    if member.is_bit_field {
                        return Err(BtfError::BitField { name: structure.into(), path: path.into() });
                    }
                    bits += member.bits;
                    id = member.of;
                }
                Step::Element(index) => {
                    if found.kind != ARRAY {
                        return Err(missing());
                    }
                    let (of, length) = (word(&self.data, found.rest)?, word(&self.data, found.rest + 8)?);
                    if index >= length {
                        return Err(missing());
                    }
                    bits += u64::from(index) * u64::from(self.size(of)?) * 8;
                    id = of;
                }
            }
        }
        u32::try_from(bits / 8).map_err(|_| BtfError::Broken { what: "an offset beyond 32 bits", at: id as usize })
    }

    /// Follows typedefs and qualifiers.
    fn peel(&self, mut id: u32) -> Result<(u32, Type), BtfError> {
        for _ in 0..DEPTH {
            let found = self.type_of(id)?;
            match found.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = found.size_or_target,
                _ => return Ok((id, found)),
            }
        }
        Err(BtfError::TooDeep)
    }

    fn size(&self, id: u32) -> Result<u32, BtfError> {
        let (_, found) = self.peel(id)?;
        match found.kind {
            INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => Ok(found.size_or_target),
            PTR => Ok(8),
            _ => Err(BtfError::Broken { what: "an array of elements without a size", at: id as usize }),
        }
    }

    fn member(&self, id: u32, name: &[u8], depth: u32) -> Result<Option<Member>, BtfError> {
        if depth == 0 {
            return Err(BtfError::TooDeep);
        }
        let within = self.type_of(id)?;
        for index in 0..within.entries as usize {
            let at = within.rest + 12 * index;
            let (own_name, of, place) =
                (self.name(word(&self.data, at)?)?, word(&self.data, at + 4)?, word(&self.data, at + 8)?);
            let (bits, width) = if within.flag { (place & 0x00ff_ffff, place >> 24) } else { (place, 0) };
            if own_name == name {
                return Ok(Some(Member { bits: u64::from(bits), of, is_bit_field: width != 0 || bits % 8 != 0 }));
            }
            if own_name.is_empty() {
                let (inner, found) = self.peel(of)?;
                if matches!(found.kind, STRUCT | UNION)
                    && let Some(member) = self.member(inner, name, depth - 1)?
                {
                    return Ok(Some(Member { bits: member.bits + u64::from(bits), ..member }));
                }
            }
        }
        Ok(None)
    }

    /// The value of an enumerator: `enumerator("zone_stat_item", "NR_FREE_PAGES")`.
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Result<u32, BtfError> {
        let mut any = false;
        for (_, found) in self.named(enumeration, &[ENUM, ENUM64]) {
            any = true;
            let entry = if found.kind == ENUM { 8 } else { 12 };
            for index in 0..found.entries as usize {
                let at = found.rest + entry * index;
                if self.name(word(&self.data, at)?)? == name.as_bytes() {
                    return word(&self.data, at + 4);
                }
            }
        }
        Err(if any {
            BtfError::Missing { what: "enumerator", name: format!("{enumeration}.{name}") }
        } else {
            BtfError::Missing { what: "enum", name: enumeration.into() }
        })
    }
}

struct Member {
    bits: u64,
    of: u32,
    is_bit_field: bool,
}

fn word(data: &[u8], at: usize) -> Result<u32, BtfError> {
    data.get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(BtfError::Broken { what: "it ends within a word", at })
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, path::Path};

    use super::*;

    fn saved(file: &str) -> Btf {
        // Cargo runs tests in their package's folder.
        let path = Path::new("../../tests/data/btf").join(file);
        let mut data = Vec::new();
        flate2::read::GzDecoder::new(fs::File::open(path).expect("saved")).read_to_end(&mut data).expect("gzip");
        Btf::parse(data).expect("well formed")
    }

    const BOOKWORM: &str = "6.1-bookworm.btf.gz";
    const TRIXIE: &str = "6.12-trixie.btf.gz";
    const FORKY: &str = "7.2-forky.btf.gz";

    #[test]
    fn members_are_where_each_kernel_has_them() {
        let kernels = [saved(BOOKWORM), saved(TRIXIE), saved(FORKY)];
        for (structure, path, expected) in [
            ("task_struct", "pid", [Some(2416), Some(2432), None]),
            ("page_counter", "max", [Some(152), Some(224), None]),
            ("mem_cgroup", "memory.high", [Some(400), Some(472), None]),
            ("cgroup", "kn", [Some(248), Some(256), None]),
            ("psi_group", "total", [Some(248), Some(248), None]),
            ("page_counter", "usage", [Some(0), Some(0), Some(0)]),
            ("cgroup", "ancestors", [None; 3]),
            ("cgroup", "level", [None; 3]),
            ("cgroup", "subsys", [None; 3]),
            ("mem_cgroup", "css", [Some(0), Some(0), None]),
            // The first pointer of a list head, and the second through an array's element.
            ("list_head", "next", [Some(0); 3]),
            ("list_head", "prev", [Some(8); 3]),
        ] {
            for (kernel, expected) in kernels.iter().zip(expected) {
                let found = kernel.offset(structure, path);
                match expected {
                    Some(offset) => assert_eq!(found, Ok(offset), "{structure}.{path}"),
                    None => assert!(found.is_ok(), "{structure}.{path}: {found:?}"),
                }
            }
        }
    }

    #[test]
    fn arrays_of_structs_step_by_their_size() {
        let kernel = saved(TRIXIE);
        let first = kernel.offset("mm_struct", "rss_stat[0].count").expect("counter");
        let second = kernel.offset("mm_struct", "rss_stat[1].count").expect("counter");
        let whole = kernel.offset("mm_struct", "rss_stat").expect("array");
        assert!(first >= whole && second - first >= 8, "{whole} {first} {second}");
        assert!(matches!(kernel.offset("mm_struct", "rss_stat[99].count"), Err(BtfError::Missing { .. })));
        assert!(matches!(kernel.offset("mm_struct", "pgd[0]"), Err(BtfError::Missing { .. })));
    }

    #[test]
    fn functions_tracepoints_and_enumerators_are_found_by_name() {
        for file in [BOOKWORM, TRIXIE, FORKY] {
            let kernel = saved(file);
            for name in ["page_counter_try_charge", "psi_memstall_enter", "psi_memstall_leave", "oom_kill_process"] {
                assert!(kernel.has_function(name), "{file}: {name}");
            }
            for name in ["mm_vmscan_wakeup_kswapd", "sched_process_fork", "cgroup_notify_populated"] {
                assert!(kernel.has_tracepoint(name), "{file}: {name}");
            }
            assert!(!kernel.has_function("plimsoll") && !kernel.has_tracepoint("plimsoll"));
            assert_eq!(kernel.enumerator("zone_stat_item", "NR_FREE_PAGES"), Ok(0), "{file}");
            assert_eq!(kernel.enumerator("node_stat_item", "NR_INACTIVE_FILE"), Ok(2), "{file}");
            let missing = |name: &str| BtfError::Missing { what: "enumerator", name: name.into() };
            let error = kernel.enumerator("node_stat_item", "NR_NONE").expect_err("no such");
            assert_eq!(error, missing("node_stat_item.NR_NONE"));
        }
    }

    #[test]
    fn bit_fields_and_unknown_names_are_refused() {
        let kernel = saved(BOOKWORM);
        assert!(matches!(kernel.offset("task_struct", "in_memstall"), Err(BtfError::BitField { .. })));
        assert!(matches!(kernel.offset("task_struct", "no_such"), Err(BtfError::Missing { what: "member", .. })));
        assert!(matches!(kernel.offset("no_such", "x"), Err(BtfError::Missing { what: "struct", .. })));
        assert!(matches!(kernel.offset("task_struct", "pid.x"), Err(BtfError::Missing { .. })));
    }

    /// Type information in the making: strings and types, appended.
    #[derive(Default)]
    struct Builder {
        strings: Vec<u8>,
        types: Vec<u8>,
    }

    impl Builder {
        fn new() -> Self {
            Self { strings: vec![0], types: Vec::new() }
        }

        fn string(&mut self, text: &str) -> u32 {
            if text.is_empty() {
                return 0;
            }
            let at = u32::try_from(self.strings.len()).expect("small");
            self.strings.extend(text.as_bytes());
            self.strings.push(0);
            at
        }

        fn push(&mut self, name: &str, kind: u32, entries: u32, flag: bool, size_or_target: u32, rest: &[u32]) {
            let name = self.string(name);
            for word in [name, kind << 24 | entries | u32::from(flag) << 31, size_or_target].iter().chain(rest) {
                self.types.extend(word.to_ne_bytes());
            }
        }

        fn finish(self) -> Vec<u8> {
            let length = |bytes: &Vec<u8>| u32::try_from(bytes.len()).expect("small");
            let mut data = Vec::new();
            data.extend(MAGIC.to_ne_bytes());
            data.extend([VERSION, 0]);
            for word in [24, 0, length(&self.types), length(&self.types), length(&self.strings)] {
                data.extend(word.to_ne_bytes());
            }
            data.extend(&self.types);
            data.extend(&self.strings);
            data
        }
    }

    /// One of everything: 1 int, 2 typedef, 3 inner union, 4 struct with an anonymous member, 5 array, 6 enum, 7 function.
    fn sample() -> Vec<u8> {
        let mut b = Builder::new();
        b.push("int", INT, 0, false, 4, &[32]);
        b.push("number", TYPEDEF, 0, false, 1, &[]);
        let (x, y) = (b.string("x"), b.string("y"));
        b.push("", UNION, 2, false, 4, &[x, 2, 0, y, 1, 0]);
        let (z, bits) = (b.string("z"), b.string("bits"));
        b.push("outer", STRUCT, 3, true, 16, &[0, 3, 32, z, 5, 64, bits, 1, 0x0300_0060]);
        b.push("", ARRAY, 0, false, 0, &[2, 1, 2]);
        let (one, two) = (b.string("ONE"), b.string("TWO"));
        b.push("choice", ENUM, 2, false, 4, &[one, 1, two, 2]);
        b.push("work", FUNC, 0, false, 0, &[]);
        b.finish()
    }

    #[test]
    fn anonymous_members_arrays_and_modifiers_are_looked_through() {
        let btf = Btf::parse(sample()).expect("well formed");
        assert_eq!(btf.offset("outer", "y"), Ok(4));
        assert_eq!(btf.offset("outer", "z[1]"), Ok(12));
        assert!(matches!(btf.offset("outer", "bits"), Err(BtfError::BitField { .. })));
        assert!(matches!(btf.offset("outer", "z[2]"), Err(BtfError::Missing { .. })));
        assert_eq!(btf.enumerator("choice", "TWO"), Ok(2));
        assert!(btf.has_function("work"));
    }

    #[test]
    fn structs_of_one_name_must_agree() {
        for (second, agree) in [(32, true), (64, false)] {
            let mut b = Builder::new();
            b.push("int", INT, 0, false, 4, &[32]);
            for place in [32, second] {
                let x = b.string("x");
                b.push("twice", STRUCT, 1, false, 16, &[x, 1, place]);
            }
            let btf = Btf::parse(b.finish()).expect("well formed");
            let found = btf.offset("twice", "x");
            assert_eq!(found.is_ok(), agree, "{found:?}");
            assert!(agree || matches!(found, Err(BtfError::Ambiguous { .. })), "{found:?}");
        }
    }

    #[test]
    fn types_that_nest_without_end_are_refused() {
        let mut b = Builder::new();
        b.push("loop", TYPEDEF, 0, false, 1, &[]);
        b.push("s", STRUCT, 1, false, 8, &[0, 2, 0]);
        let x = b.string("x");
        b.push("t", STRUCT, 1, false, 8, &[x, 1, 0]);
        let btf = Btf::parse(b.finish()).expect("well formed");
        assert_eq!(btf.offset("s", "x"), Err(BtfError::TooDeep));
        assert_eq!(btf.offset("t", "x.y"), Err(BtfError::TooDeep));
    }

    #[test]
    fn every_cut_is_an_error() {
        let whole = sample();
        for length in 0..whole.len() {
            assert!(Btf::parse(whole[..length].to_vec()).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn broken_bytes_never_panic() {
        let whole = sample();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed % below as u64).expect("below a usize")
        };
        let mut survived = 0;
        for _ in 0..50_000 {
            let mut data = whole.clone();
            for _ in 0..=random(4) {
                let at = random(data.len());
                data[at] = [0, 1, 4, 0x7f, 0xff, u8::try_from(random(256)).expect("a byte")][random(6)];
            }
            let Ok(btf) = Btf::parse(data) else { continue };
            survived += 1;
            for (structure, path) in [("outer", "y"), ("outer", "z[1]"), ("outer", "bits"), ("choice", "x")] {
                let _ = btf.offset(structure, path);
            }
            let _ = btf.enumerator("choice", "TWO");
            let _ = btf.has_function("work");
        }
        assert!(survived > 1000, "the mutations must reach the walk, not only the header: {survived}");
    }
}
