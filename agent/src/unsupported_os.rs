//! What the program says where there is no Linux, whatever it was asked.

/// The exit code of a machine that cannot be served, as on Linux.
const NOT_HERE: u8 = 3;

fn sentence(system: &str) -> String {
    format!("plimsoll needs Linux with cgroup version 2; this is {system}, where it can neither see nor stop anything.")
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn main() -> std::process::ExitCode {
    eprintln!("{}", sentence(std::env::consts::OS));
    std::process::ExitCode::from(NOT_HERE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_system_is_named_in_one_sentence() {
        for system in ["freebsd", "macos", "windows"] {
            let text = sentence(system);
            assert!(text.contains("needs Linux") && text.contains(&format!("this is {system},")), "{text}");
            assert_eq!((text.lines().count(), text.matches('.').count()), (1, 1), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_exit_code_is_the_documented_one() {
        assert_eq!(NOT_HERE, plimsoll::NOT_HERE);
        assert!(plimsoll::EXIT_CODES.contains("; 3 this machine cannot be served, and a sentence says why"));
    }
}
