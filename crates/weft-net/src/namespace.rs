//! Linux namespaces and credentials, entered by throw-away threads.
//!
//! Namespaces, root directory and credentials belong to a *thread*. Everything here happens on a thread that ends right
//! after, so that nothing has to be undone, and a process started by that thread is born with all of it.

use crate::netlink::{nft::NftSocket, route::RouteSocket};
use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags,
        configure_capability_in_ambient_set, move_into_link_name_space, move_into_thread_name_spaces,
        remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};
use weft_fault::{Code, Fault, Phase};

/// Namespaces to be born in, besides those joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    Nothing,
    /// Mounts and process numbers: a container of a pod.
    Container,
    /// Everything but users: a whole mesh.
    Machine,
}

impl Fresh {
    pub(crate) fn flags(self) -> UnshareFlags {
        match self {
            Fresh::Nothing => UnshareFlags::empty(),
            Fresh::Container => UnshareFlags::NEWNS | UnshareFlags::NEWPID,
            Fresh::Machine => {
                UnshareFlags::NEWNS
                    | UnshareFlags::NEWPID
                    | UnshareFlags::NEWNET
                    | UnshareFlags::NEWUTS
                    | UnshareFlags::NEWIPC
            }
        }
    }
}

/// Where a thread goes before it works.
#[derive(Clone, Copy, Debug, Default)]
pub struct Enter<'a> {
    /// A pod's namespaces to join.
    pub pod: Option<&'a PodNamespaces>,
    /// A network namespace to join, as a file such as `/var/run/netns/NAME`.
    pub net: Option<BorrowedFd<'a>>,
    /// A process, by pidfd, whose namespaces (net, UTS, IPC, mount, pid) to join.
    pub process: Option<BorrowedFd<'a>>,
    pub fresh: Option<Fresh>,
    pub credentials: Option<&'a Credentials>,
}

/// Does `work` on a new thread that has entered what `enter` says. Blocks until it is done.
///
/// Children started by `work` are children of this process. With fresh process numbers the first child is process 1.
pub fn enter<T: Send>(enter: Enter<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T, Fault> {
    let on_thread = || -> Result<T, Fault> {
        if let Some(pod) = enter.pod {
            pod.join().map_err(|e| unable("join a pod's namespaces", e))?;
        }
        if let Some(net) = enter.net {
            move_into_link_name_space(net, Some(LinkNameSpaceType::Network))
                .map_err(|e| unable("join a network namespace", e))?;
        }
        if let Some(process) = enter.process {
            // A thread that shares its root directory with others may not change its mount namespace.
            unshare(UnshareFlags::FS).map_err(|e| unable("unshare the root directory", e))?;
            let all = ThreadNameSpaceType::NETWORK
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::PROCESS_ID;
            move_into_thread_name_spaces(process, all)
                .map_err(|e| unable("join a container's namespaces", e))?;
        }
        if let Some(fresh) = enter.fresh {
            unshare(fresh.flags()).map_err(|e| unable("make namespaces", e))?;
        }
        if let Some(credentials) = enter.credentials {
            credentials.take_on().map_err(|e| unable("drop privileges", e))?;
        }
        work().map_err(|e| Fault::new(Code::StartFailed).in_phase(Phase::Start).because(e))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("weft-enter".into()).spawn_scoped(scope, on_thread);
        let thread = thread.map_err(|e| unable("start a thread", e))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Fault::new(Code::Invariant).fact("panic", "in a namespace thread")))
    })
}

fn unable(step: &'static str, error: impl Into<io::Error>) -> Fault {
    let error = error.into();
    let mut fault = Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", step);
    if let Some(setting) = setting_for(&error) {
        fault = fault.fact("setting", setting);
    }
    fault.because(error)
}

/// What to change on this machine, where the system error tells it.
fn setting_for(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EPERM => {
            Some("run as root, with CAP_SYS_ADMIN and without a seccomp profile that forbids namespaces")
        }
        libc::ENOSPC => Some("sysctl user.max_net_namespaces=15000 user.max_pid_namespaces=15000"),
        _ => None,
    }
}

pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: only CLONE_FILES can break another thread's use of file descriptors, and no caller passes it: the flags
    // come from `Fresh::flags`, the constant FS, and the pod's namespaces.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// The network, host name and IPC namespaces that the containers of a pod share. They live as long as this value
/// or a process in them.
#[derive(Debug)]
pub struct PodNamespaces {
    net: OwnedFd,
    uts: OwnedFd,
    ipc: OwnedFd,
}

/// The netlink sockets of a pod's network namespace.
#[derive(Debug)]
pub struct PodSockets {
    pub route: RouteSocket,
    pub nft: NftSocket,
}

impl PodNamespaces {
    /// Makes the namespaces of a pod; `sysctls` are (path under `/proc/sys/net`, value), set before anything runs.
    pub fn create(hostname: &str, sysctls: &[(&str, &str)]) -> Result<(Self, PodSockets), Fault> {
        let flags = UnshareFlags::NEWNET | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
        enter(Enter::default(), || {
            unshare(flags)?;
            rustix::system::sethostname(hostname.as_bytes())?;
            for (path, value) in sysctls {
                std::fs::write(Path::new("/proc/sys/net").join(path), value)?;
            }
            let open = |kind: &str| File::open(format!("/proc/thread-self/ns/{kind}")).map(OwnedFd::from);
            let spaces = PodNamespaces { net: open("net")?, uts: open("uts")?, ipc: open("ipc")? };
            let refused = |e: crate::netlink::NetlinkError| e.error;
            let route = RouteSocket::open().map_err(refused)?;
            let nft = NftSocket::open().map_err(refused)?;
            Ok((spaces, PodSockets { route, nft }))
        })
    }

    /// The network namespace, for netlink requests that name one.
    pub fn net(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }

    fn join(&self) -> rustix::io::Result<()> {
        move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
        move_into_link_name_space(self.uts.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName))?;
        move_into_link_name_space(self.ipc.as_fd(), Some(LinkNameSpaceType::InterProcessCommunication))
    }
}

/// Who a process is and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// `None` leaves them as they are, where a user namespace does not let anybody set them.
    pub groups: Option<Vec<u32>>,
    /// What root keeps, and the most that the process can ever have.
    pub bounding: CapabilitySet,
    /// What a user other than root has.
    pub ambient: CapabilitySet,
}

/// What a container's root holds: Docker's list without NET_RAW (a mark would pass the redirect) and MKNOD.
pub const CONTAINER_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP);

impl Credentials {
    /// An ordinary container process.
    pub fn container(uid: u32, gid: u32) -> Self {
        Credentials {
            uid,
            gid,
            groups: Some(Vec::new()),
            bounding: CONTAINER_CAPABILITIES,
            ambient: CapabilitySet::empty(),
        }
    }

    /// Makes the calling thread (and the processes it starts) this user. There is no way back.
    fn take_on(&self) -> rustix::io::Result<()> {
        let keep = self.bounding | self.ambient;
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            if keep.contains(capability) {
                continue;
            }
            match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // Above the kernel's last capability.
                Err(rustix::io::Errno::INVAL) => break,
                Err(e) => return Err(e),
            }
        }
        set_keep_capabilities(true)?;
        // Groups first: without root they cannot be changed.
        if let Some(groups) = &self.groups {
            let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
            set_thread_groups(&groups)?;
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        let held = if self.uid == 0 { keep } else { self.ambient };
        set_capabilities(
            None,
            CapabilitySets { effective: held, permitted: held, inheritable: self.ambient },
        )?;
        for capability in self.ambient.iter() {
            configure_capability_in_ambient_set(capability, true)?;
        }
        set_no_new_privs(true)
    }
}
