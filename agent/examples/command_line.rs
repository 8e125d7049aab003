//! Writes the man pages of the agent's command line (`man DIRECTORY`), or its completions for each shell (`completions
//! DIRECTORY`), into a directory that is there. `cargo xtask man` and `cargo xtask completions` run it.

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    use clap::ValueEnum as _;
    use clap_complete::Shell;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut command = plimsoll::command_line();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["man", directory] => clap_mangen::generate_to(command, directory),
        ["completions", directory] => Shell::value_variants()
            .iter()
            .try_for_each(|shell| clap_complete::generate_to(*shell, &mut command, "plimsoll", directory).map(drop)),
        _ => Err(std::io::Error::other("expected `man DIRECTORY` or `completions DIRECTORY`")),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
