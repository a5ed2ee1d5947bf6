//! The CPU time that processes have used, to the nanosecond.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The processes of these groups: a proxy and whatever it has started.
///
/// [`crate::envoy::Process`] makes every child the leader of a group of its own.
pub(super) fn groups(leaders: &[u32]) -> Result<Vec<u32>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        let Some(pid): Option<u32> = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while we look.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything, so fields are counted behind it: state, parent, group.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let group = fields.split_whitespace().nth(2).and_then(|group| group.parse().ok());
        if group.is_some_and(|group| leaders.contains(&group)) {
            members.push(pid);
        }
    }
    if let Some(gone) = leaders.iter().find(|leader| !members.contains(leader)) {
        bail!("the process {gone} has ended");
    }
    Ok(members)
}

/// User and system time of all threads of these processes, those included that have ended.
///
/// # Errors
/// When one of the processes is gone.
pub(crate) fn used(processes: &[u32]) -> Result<Duration> {
    processes.iter().map(|&pid| of(pid)).sum()
}

#[expect(unsafe_code, reason = "clocks of other processes have no safe wrapper in std")]
fn of(pid: u32) -> Result<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: plain system calls on variables of our own.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut time) != 0
    };
    if failed {
        bail!("the process {pid} has no CPU clock: it has ended");
    }
    Ok(Duration::new(time.tv_sec.try_into()?, time.tv_nsec.try_into()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;
    use crate::envoy::{Output, Process};

    #[test]
    fn counts_what_a_child_of_the_process_uses() {
        let mut command = Command::new("sh");
        // The shell waits; its child spins.
        command.args(["-c", "(while :; do :; done) & wait"]).stdin(Stdio::null());
        let process = Process::start("spin", command, &Output::Inherit).unwrap();
        let start = Instant::now();
        loop {
            let members = groups(&[process.pid()]).unwrap();
            if members.len() == 2 && used(&members).unwrap() > Duration::from_millis(20) {
                for pid in members.into_iter().filter(|&pid| pid != process.pid()) {
                    Command::new("kill").arg(pid.to_string()).status().unwrap();
                }
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{members:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
