//! What the owners of cgroups try so that others are evicted in their place, or none: a user with a delegated subtree, and
//! root in a container. Each attempt has a process that grows; the owner of that process is evicted and no other, whatever
//! is done meanwhile, and the agent works on.

use crate::agent::tail;
use crate::attacker::{Attacker, remove_nested};
use crate::cgroup::{self, Cgroup};
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, short_lists, wait_for};
use crate::scene::{MIB, PATIENCE, Scene, was_killed};
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, mount_remount};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Child;

/// One thing to try.
struct Attempt {
    name: &'static str,
    /// A shell script. `$grow` is the program that grows.
    script: &'static str,
    /// What has to come of it.
    ends: Ends,
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// The process that grows is evicted.
    Evicted,
    /// Likewise, from a cgroup that lies too deep for any path.
    EvictedFromTheDeep,
    /// The kernel kills the process at a limit of its own cgroup, and the agent kills nothing.
    AtItsLimit,
    /// It ends by itself, and the agent kills nothing.
    ByItself,
}

const fn evicted(name: &'static str, script: &'static str) -> Attempt {
    Attempt { name, script, ends: Ends::Evicted }
}

/// What grows.
const GROW: &str = "/bin/plimsoll-guest hog anon --mib 256 --hold 120";
/// A name and how often it is repeated, for a path of more than 4,096 bytes, which is the most that a system call takes.
const LONG: (usize, usize) = (250, 18);

/// Tried by a user with each change. The shell is in the cgroup `init` of its subtree.
const BY_A_USER: &[Attempt] = &[
    // Without the controller it is no workload yet, so that the agent meets it with its protection.
    evicted(
        "protects",
        "echo -memory > cgroup.subtree_control; mkdir leaf; echo +memory > cgroup.subtree_control
         echo 1G > leaf/memory.low; echo 1G > leaf/memory.min; echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted(
        "names",
        r#"if mkdir "$(printf 'a\nb')"; then exit 9; fi
           n="$(printf '\033[2J\r\377\t"},{"kill":"begun","cgroup":"work.slice\\high')"
           mkdir "$n"; echo '+memory' > "$n/cgroup.subtree_control"; m="$n/$(printf '%0220d' 7)"; mkdir "$m"
           echo 0 > "$m/cgroup.procs"; exec $grow"#,
    ),
    // Its memory stays charged to cgroups that it has left.
    evicted(
        "leaves",
        "me=$$; (for i in $(seq 200); do mkdir h$i; echo $me > h$i/cgroup.procs; usleep 5000; done) &
         exec $grow --rate 80",
    ),
];

/// Tried by a user in long runs.
const BY_A_USER_AT_LENGTH: &[Attempt] = &[
    // More workloads than an owner may have: all of it becomes one as soon as they are counted.
    evicted("many", "mkdir $(seq 300) last; echo 0 > last/cgroup.procs; exec $grow"),
    evicted(
        "deep",
        "d=.; for i in $(seq 40); do echo +memory > $d/cgroup.subtree_control; d=$d/d; mkdir $d; done
         echo 0 > $d/cgroup.procs; exec $grow",
    ),
    Attempt {
        name: "long",
        script: "n=$(printf %0250d 0); for i in $(seq 18); do mkdir $n; echo +memory > cgroup.subtree_control; cd -P $n; done
                 echo 0 > cgroup.procs; exec $grow",
        ends: Ends::EvictedFromTheDeep,
    },
    evicted(
        "refills",
        "mkdir leaf; (while :; do
             sh -c 'echo 0 > leaf/cgroup.procs; exec /bin/plimsoll-guest hog anon --mib 8 --hold 1' & usleep 50000
         done) & echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted(
        "forks",
        "mkdir leaf; echo 60 > leaf/pids.max; echo 0 > leaf/cgroup.procs
         exec /bin/plimsoll-guest hog fork --mib 4 --hold 120",
    ),
    evicted(
        "thaws",
        "mkdir leaf; (while :; do echo 0 > leaf/cgroup.freeze; done) & echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted(
        "freezes",
        "mkdir leaf; (while :; do echo 1 > leaf/cgroup.freeze; echo 0 > leaf/cgroup.freeze; done) &
         echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted(
        "continues",
        "mkdir leaf; me=$$; (while :; do kill -CONT $me; done) & echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted(
        "moves",
        "mkdir a b; me=$$; (while :; do echo $me > b/cgroup.procs; echo $me > a/cgroup.procs; done) & exec $grow",
    ),
    evicted(
        "uncounts",
        "mkdir leaf; echo 0 > leaf/cgroup.procs
         (while :; do echo -memory > cgroup.subtree_control; echo +memory > cgroup.subtree_control; done) & exec $grow",
    ),
    evicted(
        "threaded",
        "mkdir -p leaf/t; echo threaded > leaf/t/cgroup.type; echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted(
        "scores",
        "mkdir leaf; me=$$; (while :; do echo 1000 > /proc/$me/oom_score_adj; echo 0 > /proc/$me/oom_score_adj; done) &
         echo 0 > leaf/cgroup.procs; exec $grow",
    ),
    evicted("storms", "mkdir leaf; (while :; do mkdir x; rmdir x; done) & echo 0 > leaf/cgroup.procs; exec $grow"),
    evicted("first-thread", "mkdir leaf; echo 0 > leaf/cgroup.procs; exec $grow --pthread-exit"),
    Attempt {
        name: "limits",
        script: "mkdir leaf; echo 32M > leaf/memory.max; echo 0 > leaf/cgroup.procs; exec $grow",
        ends: Ends::AtItsLimit,
    },
    // Its tasks stall for as long as they run.
    Attempt {
        name: "stalls",
        script: "mkdir leaf; echo 4M > leaf/memory.high; echo 0 > leaf/cgroup.procs; timeout 4 $grow || true",
        ends: Ends::ByItself,
    },
];

/// Tried by root in a container with each change.
const IN_A_CONTAINER: &[Attempt] = &[evicted("first-thread", "exec $grow --pthread-exit")];

/// Tried there in long runs.
const IN_A_CONTAINER_AT_LENGTH: &[Attempt] = &[
    evicted("continues", "me=$$; (while :; do kill -CONT $me; done) & exec $grow"),
    evicted("many", "for i in $(seq 40); do /bin/plimsoll-guest hog anon --mib 6 --hold 120 & done; wait"),
    evicted("forks", "exec /bin/plimsoll-guest hog fork --mib 4 --hold 120"),
    evicted("leaves-files", "exec /bin/plimsoll-guest hog tmpfs --keep --mib 256 --hold 120"),
    evicted(
        "scores",
        "me=$$; (while :; do echo 1000 > /proc/$me/oom_score_adj; echo 0 > /proc/$me/oom_score_adj; done) & exec $grow",
    ),
];

/// Tried by root in a container, with its own cgroups writable.
const IN_A_CONTAINER_WITH_USERS: &[Attempt] = &[evicted(
    "protects",
    "mkdir init leaf; echo 0 > init/cgroup.procs; echo +memory > cgroup.subtree_control
     if echo 100M > memory.low; then exit 9; fi
     echo 1G > leaf/memory.low; echo 1G > leaf/memory.min; echo 0 > leaf/cgroup.procs; exec $grow",
)];

pub(crate) fn user() -> Result<()> {
    attack(&[(Attacker::User, BY_A_USER)])
}

pub(crate) fn user_at_length() -> Result<()> {
    attack(&[(Attacker::User, BY_A_USER_AT_LENGTH)])
}

pub(crate) fn container() -> Result<()> {
    attack(&[(Attacker::Container, IN_A_CONTAINER)])
}

pub(crate) fn container_at_length() -> Result<()> {
    // As systemd mounts it: what is in a cgroup namespace may not write the limits of its root.
    mount_remount(cgroup::ROOT, MountFlags::empty(), "nsdelegate")?;
    let outcome = attack(&[
        (Attacker::Container, IN_A_CONTAINER_AT_LENGTH),
        (Attacker::ContainerWithUsers, IN_A_CONTAINER_WITH_USERS),
    ]);
    mount_remount(cgroup::ROOT, MountFlags::empty(), "")?;
    outcome
}

/// The bystander is larger than any other workload, and within a reservation that only root can make.
struct Bystander {
    cgroup: Cgroup,
    child: Child,
}

impl Bystander {
    fn start() -> Result<Self> {
        Cgroup::create("user.slice")?.write("memory.low", "512M")?;
        let cgroup = Cgroup::create("user.slice/bystander")?;
        let child = guest().args(["idle", "--mib", "64", "--cgroup"]).arg(cgroup.path()).spawn()?;
        wait_for("the bystander is in place", PATIENCE, || Ok(cgroup.current()? >= 64 * MIB))?;
        Ok(Self { cgroup, child })
    }

    fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the bystander was evicted: {ended:?}");
        Ok(())
    }
}

fn attack(by: &[(Attacker, &[Attempt])]) -> Result<()> {
    let _lists = short_lists()?;
    let mut bystander = Bystander::start()?;
    let mut scene = Scene::set_with(96, |settings| settings.kernel_brake = true)?;
    for (attacker, attempts) in by {
        for attempt in *attempts {
            try_it(&mut scene, &mut bystander, *attacker, attempt)
                .with_context(|| format!("{attacker:?} {}; log: {}", attempt.name, tail(&scene.agent.text())))?;
        }
        reaches_nothing(&scene, &bystander, *attacker).with_context(|| format!("{attacker:?}"))?;
    }
    let victim = Cgroup::create("work.slice/afterwards")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    scene.expect_killed(&mut hog, &victim).context("after all attempts")?;
    bystander.check()?;
    bystander.child.kill()?;
    bystander.child.wait()?;
    scene.end()
}

fn try_it(scene: &mut Scene, bystander: &mut Bystander, attacker: Attacker, attempt: &Attempt) -> Result<()> {
    let before = kills(scene)?.len();
    let home = attacker.home(&format!("{}-{attacker:?}", attempt.name))?;
    let mut child = attacker.run(&home, &format!("grow='{GROW}'; {}", attempt.script))?;
    let mut ended = None;
    wait_for("the attempt is over", PATIENCE, || {
        bystander.check()?;
        if attempt.ends != Ends::AtItsLimit {
            scene.check()?;
        }
        ended = child.try_wait()?;
        Ok(ended.is_some())
    })?;
    let is_killed = ended.is_some_and(was_killed);
    ensure!(is_killed == (attempt.ends != Ends::ByItself), "it ended by itself, or did not: {ended:?}");
    if attempt.ends == Ends::AtItsLimit {
        scene.expect_oom_kill()?;
    }
    let is_evicted = !matches!(attempt.ends, Ends::AtItsLimit | Ends::ByItself);
    wait_for("the kill is reported", PATIENCE, || Ok(!is_evicted || kills(scene)?.len() > before))?;
    // Its companions live on.
    home.write("cgroup.kill", "1")?;
    wait_for("its cgroups are empty", PATIENCE, || Ok(!home.populated()?))?;
    if attempt.ends == Ends::EvictedFromTheDeep {
        remove_nested(&home, &"0".repeat(LONG.0), LONG.1)?;
    }
    home.remove()?;
    scene.settled()?;
    for path in &kills(scene)?[before..] {
        ensure!(is_evicted && is_of(path, &home), "{path} was killed");
    }
    wait_for("memory is back", PATIENCE, || {
        Ok(machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes + 32 * MIB)
    })
}

/// Whether a path in the log is of a cgroup in this one. Of a long path the log has the end.
fn is_of(path: &str, home: &Cgroup) -> bool {
    let below = path.strip_prefix(home.name());
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) || path.trim_matches(['0', '/']).is_empty()
}

/// The cgroups that the agent reported to have killed. Every line of its log is whole, whatever names are in it.
fn kills(scene: &Scene) -> Result<Vec<String>> {
    let text = scene.agent.text();
    let mut killed = Vec::new();
    // The last line may not be complete yet.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not a line of the log: {line:?}"))?;
        if line["kill"] == "begun" {
            killed.push(line["cgroup"].as_str().context("a kill of no cgroup")?.to_owned());
        }
    }
    Ok(killed)
}

/// From its place the attacker reaches neither the agent nor other cgroups.
fn reaches_nothing(scene: &Scene, bystander: &Bystander, attacker: Attacker) -> Result<()> {
    let home = attacker.home(&format!("reaches-{attacker:?}"))?;
    let parts = [scene.agent.pid(), scene.agent.part("core")?, scene.agent.part("reporter")?];
    let others = [bystander.cgroup.path().to_owned(), scene.settings.cgroup()?.path().to_owned()];
    let mut program = vec!["/bin/plimsoll-guest".to_owned(), "reach".to_owned()];
    if attacker == Attacker::User {
        program.push("--found".to_owned());
    }
    program.extend(parts.iter().map(|pid| format!("--process={pid}")));
    let paths: Vec<PathBuf> = others.into_iter().chain(attacker.forbidden(&home)).collect();
    program.extend(paths.iter().map(|path| format!("--cgroup={}", path.display())));
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let ended = attacker.start(&home, &program)?.wait()?;
    ensure!(ended.success(), "it reaches what it must not: {ended}");
    home.remove()
}
