//! What is tried, one after another. What is opened, connected to or attacked is there: an attempt at what is not shows
//! nothing.

use std::ffi::CString;
use std::ptr::null;

use libc::{c_int, c_long};

use super::Target;
use super::call::{at, call, connect, connect_port, executable, fork, open_at, through_new, through_open};

/// Files, by how they are opened. `CORE` stands for the core's process, `DIRECTORY` for what the test has made. Names that
/// begin with `read-` are of opens that could only read.
const FILES: &[(&str, &str, c_int)] = &[
    ("facts", "DIRECTORY/facts/pods.json", libc::O_RDONLY),
    ("read-beside-facts", "DIRECTORY/beside", libc::O_RDONLY),
    ("read-above-facts", "DIRECTORY/facts/../beside", libc::O_RDONLY),
    ("read-by-a-link", "DIRECTORY/facts/link", libc::O_RDONLY),
    ("read-root", "/", libc::O_RDONLY | libc::O_DIRECTORY),
    ("read-itself", "/proc/self/status", libc::O_RDONLY),
    ("read-process", "/proc/1/cmdline", libc::O_RDONLY),
    ("read-core", "/proc/CORE/status", libc::O_RDONLY),
    ("read-core-memory", "/proc/CORE/mem", libc::O_RDONLY),
    ("read-core-environment", "/proc/CORE/environ", libc::O_RDONLY),
    ("read-core-descriptors", "/proc/CORE/fd", libc::O_RDONLY | libc::O_DIRECTORY),
    ("read-secret", "/etc/shadow", libc::O_RDONLY),
    ("read-state", "/run/plimsoll", libc::O_RDONLY | libc::O_DIRECTORY),
    ("read-run-record", "/run/plimsoll/record", libc::O_RDONLY),
    ("read-journal", "/run/plimsoll/stopped", libc::O_RDONLY),
    ("read-lock", "/sys/fs/cgroup/memory.reclaim", libc::O_RDONLY),
    ("read-cgroups", "/sys/fs/cgroup/work.slice", libc::O_RDONLY | libc::O_DIRECTORY),
    ("read-cgroup", "/sys/fs/cgroup/work.slice/cgroup.procs", libc::O_RDONLY),
    ("read-pinned-maps", "/sys/fs/bpf/plimsoll", libc::O_RDONLY | libc::O_DIRECTORY),
    ("read-kernel-log", "/dev/kmsg", libc::O_RDONLY),
    ("read-kernel-symbols", "/proc/kallsyms", libc::O_RDONLY),
    ("read-machine-memory", "/dev/mem", libc::O_RDONLY),
    ("read-kubelet", "/var/lib/kubelet/config.yaml", libc::O_RDONLY),
    ("write-facts", "DIRECTORY/facts/pods.json", libc::O_WRONLY),
    ("empty-facts", "DIRECTORY/facts/pods.json", libc::O_RDONLY | libc::O_TRUNC),
    ("make-facts", "DIRECTORY/facts/new", libc::O_RDONLY | libc::O_CREAT),
    ("make-unnamed", "DIRECTORY/facts", libc::O_RDWR | libc::O_TMPFILE),
    ("make-state", "/run/plimsoll/new", libc::O_WRONLY | libc::O_CREAT),
    ("write-run-record", "/run/plimsoll/record", libc::O_RDWR),
    ("write-core-memory", "/proc/CORE/mem", libc::O_RDWR),
    ("write-core-score", "/proc/CORE/oom_score_adj", libc::O_WRONLY),
    ("write-own-groups", "/proc/self/gid_map", libc::O_WRONLY),
    ("write-cgroup", "/sys/fs/cgroup/work.slice/cgroup.kill", libc::O_WRONLY),
    ("write-kernel-log", "/dev/kmsg", libc::O_WRONLY),
    ("write-machine-memory", "/dev/mem", libc::O_RDWR),
    ("write-setting", "/proc/sys/vm/drop_caches", libc::O_WRONLY),
    ("write-kubelet", "/var/lib/kubelet/config.yaml", libc::O_RDWR),
];

/// Sockets that listen, which every user may connect to here.
const SOCKETS: &[(&str, &[u8])] = &[
    ("connect-dbus", b"/run/dbus/system_bus_socket"),
    ("connect-systemd", b"/run/systemd/private"),
    ("connect-containerd", b"/run/containerd/containerd.sock"),
    ("connect-abstract", b"\0plimsoll-hostile"),
];

/// asm-generic/ioctls.h; the type of libc's constant differs with the C library.
const TIOCSTI: c_long = 0x5412;
const NO_ARGUMENTS: [c_long; 5] = [0; 5];
const NO_FILE: [c_long; 5] = [-1, 0, 0, 0, 0];

/// System calls for which it does not matter what they are given.
const CALLS: &[(&str, c_long, [c_long; 5])] = &[
    // Another user, or more than a user may.
    ("root", libc::SYS_setresuid, NO_ARGUMENTS),
    ("root-group", libc::SYS_setresgid, NO_ARGUMENTS),
    ("groups", libc::SYS_setgroups, NO_ARGUMENTS),
    ("capabilities", libc::SYS_capset, NO_ARGUMENTS),
    ("dumpable", libc::SYS_prctl, [libc::PR_SET_DUMPABLE as c_long, 1, 0, 0, 0]),
    // Namespaces and mounts.
    ("user-namespace", libc::SYS_unshare, [libc::CLONE_NEWUSER as c_long, 0, 0, 0, 0]),
    ("mount-namespace", libc::SYS_unshare, [libc::CLONE_NEWNS as c_long, 0, 0, 0, 0]),
    ("enter-namespace", libc::SYS_setns, NO_FILE),
    ("change-root", libc::SYS_chroot, NO_ARGUMENTS),
    ("unmount", libc::SYS_umount2, NO_ARGUMENTS),
    ("new-mount", libc::SYS_fsopen, NO_ARGUMENTS),
    ("mount-tree", libc::SYS_open_tree, NO_ARGUMENTS),
    // Other processes, by descriptors.
    ("signal-descriptor", libc::SYS_pidfd_send_signal, NO_FILE),
    ("take-descriptor", libc::SYS_pidfd_getfd, NO_FILE),
    ("advise-memory", libc::SYS_process_madvise, NO_FILE),
    ("release-memory", libc::SYS_process_mrelease, NO_FILE),
    // Files by other calls.
    ("open-newer", libc::SYS_openat2, NO_FILE),
    ("open-by-handle", libc::SYS_open_by_handle_at, NO_FILE),
    ("read-link", libc::SYS_readlinkat, NO_FILE),
    ("remove-file", libc::SYS_unlinkat, NO_FILE),
    ("rename-file", libc::SYS_renameat2, NO_FILE),
    ("make-directory", libc::SYS_mkdirat, NO_FILE),
    ("make-node", libc::SYS_mknodat, NO_FILE),
    ("make-link", libc::SYS_linkat, NO_FILE),
    ("make-symbolic-link", libc::SYS_symlinkat, NO_FILE),
    ("change-mode", libc::SYS_fchmodat, NO_FILE),
    ("change-owner", libc::SYS_fchownat, NO_FILE),
    ("cut-off", libc::SYS_ftruncate, NO_FILE),
    ("watch-files", libc::SYS_fanotify_init, NO_ARGUMENTS),
    ("command", libc::SYS_ioctl, [2, TIOCSTI, 0, 0, 0]),
    // Parts of the kernel that have often been ways into it.
    ("perf-event", libc::SYS_perf_event_open, NO_ARGUMENTS),
    ("page-faults", libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
    ("ring-enter", libc::SYS_io_uring_enter, NO_FILE),
    ("add-key", libc::SYS_add_key, NO_ARGUMENTS),
    ("key-ring", libc::SYS_keyctl, [0, -3, 0, 0, 0]),
    ("module", libc::SYS_init_module, NO_ARGUMENTS),
    ("module-of-a-file", libc::SYS_finit_module, NO_FILE),
    ("next-kernel", libc::SYS_kexec_load, NO_ARGUMENTS),
    ("reboot", libc::SYS_reboot, NO_ARGUMENTS),
    ("swap", libc::SYS_swapoff, NO_ARGUMENTS),
    ("clock", libc::SYS_clock_settime, NO_ARGUMENTS),
    ("host-name", libc::SYS_sethostname, NO_ARGUMENTS),
];

/// By name; each gives the error, or 0.
type Attempt = (&'static str, fn(&Target) -> c_int);

const OTHERS: &[Attempt] = &[
    ("connect", |target| connect(format!("{}/socket", target.directory).as_bytes(), libc::SOCK_STREAM)),
    ("connect-open-socket", |target| through_open(format!("{}/socket", target.directory).as_bytes())),
    ("connect-port", |_| connect_port(1)),
    ("netlink", |_| through_new(libc::AF_NETLINK, libc::SOCK_RAW, |_| 0)),
    ("packets", |_| through_new(libc::AF_PACKET, libc::SOCK_RAW, |_| 0)),
    ("pair", |_| {
        let mut ends = [0; 2];
        call(libc::SYS_socketpair, [libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), 0, at(ends.as_mut_ptr()), 0])
    }),
    ("limit", |target| {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        call(libc::SYS_prlimit64, [target.core.into(), c_long::from(libc::RLIMIT_CPU), at(&raw const limit), 0, 0])
    }),
    ("own-limit", |_| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        call(libc::SYS_prlimit64, [0, c_long::from(libc::RLIMIT_CORE), 0, at(&raw mut limit), 0])
    }),
    ("signal", |target| call(libc::SYS_kill, [target.core.into(), libc::SIGURG.into(), 0, 0, 0])),
    ("thread-signal", |target| {
        call(libc::SYS_tgkill, [target.core.into(), target.core.into(), libc::SIGURG.into(), 0, 0])
    }),
    ("queued-signal", |target| call(libc::SYS_rt_sigqueueinfo, [target.core.into(), libc::SIGURG.into(), 0, 0, 0])),
    ("process-descriptor", |target| call(libc::SYS_pidfd_open, [target.core.into(), 0, 0, 0, 0])),
    ("trace", |target| call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), target.core.into(), 0, 0, 0])),
    ("compare", |target| call(libc::SYS_kcmp, [target.core.into(), target.core.into(), 1, 0, 0])),
    ("read-memory-of-the-core", |target| memory(target, libc::SYS_process_vm_readv)),
    ("write-memory-of-the-core", |target| memory(target, libc::SYS_process_vm_writev)),
    ("processor", |target| {
        let all = [u64::MAX; 16];
        let bytes = c_long::try_from(size_of_val(&all)).unwrap_or(0);
        call(libc::SYS_sched_setaffinity, [target.core.into(), bytes, at(all.as_ptr()), 0, 0])
    }),
    ("scheduling", |target| {
        let ordinary = 0;
        call(libc::SYS_sched_setscheduler, [target.core.into(), 0, at::<c_int>(&raw const ordinary), 0, 0])
    }),
    ("priority", |target| call(libc::SYS_setpriority, [0, target.core.into(), 19, 0, 0])),
    ("process", |_| fork(0)),
    ("process-in-a-namespace", |_| fork(libc::CLONE_NEWUSER)),
    ("newer-clone", |_| call(libc::SYS_clone3, NO_ARGUMENTS)),
    ("program", |_| {
        let arguments = [c"/bin/plimsoll".as_ptr(), null()];
        // Where it succeeds, nothing is reported any more.
        call(libc::SYS_execve, [at(arguments[0]), at(arguments.as_ptr()), 0, 0, 0])
    }),
    ("executable-memory", |_| executable()),
    ("file-in-memory", |_| call(libc::SYS_memfd_create, [at(c"x".as_ptr()), 0, 0, 0, 0])),
    ("create-map", |_| {
        // BPF_MAP_CREATE of an array with one value of eight bytes.
        let attributes = [2_u32, 4, 8, 1, 0, 0, 0, 0];
        let size = c_long::try_from(size_of_val(&attributes)).unwrap_or(0);
        call(libc::SYS_bpf, [0, at(&raw const attributes), size, 0, 0])
    }),
    ("mount", |_| {
        let (name, place) = (c"tmpfs".as_ptr(), c"/run".as_ptr());
        call(libc::SYS_mount, [at(name), at(place), at(name), 0, 0])
    }),
    ("ring", |_| {
        let mut parameters = [0_u64; 32];
        call(libc::SYS_io_uring_setup, [1, at(parameters.as_mut_ptr()), 0, 0, 0])
    }),
];

/// Reads a byte of the core's memory, or writes it.
fn memory(target: &Target, number: c_long) -> c_int {
    let mut byte = 0_u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let vector = at(&raw const vector);
    call(number, [target.core.into(), vector, 1, vector, 1])
}

/// Tries all, and gives what came of each.
pub(super) fn all(target: &Target, outcome: &mut dyn FnMut(&str, c_int)) {
    for (name, path, how) in FILES {
        let path = path.replace("DIRECTORY", &target.directory).replace("CORE", &target.core.to_string());
        outcome(name, CString::new(path).map_or(libc::EINVAL, |path| open_at(&path, *how)));
    }
    for (name, socket) in SOCKETS {
        outcome(name, connect(socket, libc::SOCK_STREAM));
    }
    for (name, number, arguments) in CALLS {
        outcome(name, call(*number, *arguments));
    }
    for (name, attempt) in OTHERS {
        outcome(name, attempt(target));
    }
}
