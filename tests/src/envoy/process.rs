//! Child processes that never outlive their owner, however it ends.

use std::fs::{File, OpenOptions};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use anyhow::{Context, Result, bail};

/// Where a child's output goes.
#[derive(Debug, Clone)]
pub enum Output {
    /// To a file, and its end to stderr when the owner is dropped by a panic.
    File(PathBuf),
    /// To the owner's own stdout and stderr.
    Inherit,
}

/// A running child. Ended on drop, and by the kernel when this process dies.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: Option<PathBuf>,
}

impl Process {
    /// Starts `command`; `name` stands in messages.
    pub fn start(name: &str, mut command: Command, output: &Output) -> Result<Self> {
        // Of a group of its own: ctrl-c is for the owner, who ends its children in order.
        command.stdin(Stdio::null()).process_group(0);
        let log = match output {
            Output::File(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path)?;
                command.stdout(file.try_clone()?).stderr(file);
                Some(path.clone())
            }
            Output::Inherit => None,
        };
        let program = command.get_program().to_owned();
        let child = spawn(command).with_context(|| format!("cannot start {name} ({})", program.display()))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, or none while it runs.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_else(|_| Some(ExitStatus::from_raw(0)))
    }

    /// Asks it to end and waits; kills it after `patience`.
    pub fn stop(&mut self, patience: Duration) {
        if self.exited().is_some() {
            return;
        }
        signal(self.pid(), libc::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < patience {
            if self.exited().is_some() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    /// Stops it from running until [`Process::resume`].
    pub fn suspend(&self) {
        signal(self.pid(), libc::SIGSTOP);
    }

    /// Lets it run again.
    pub fn resume(&self) {
        signal(self.pid(), libc::SIGCONT);
    }

    /// Ends it without asking.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it has written so far, if that goes to a file.
    pub fn log(&self) -> String {
        let bytes = self.log.as_ref().and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() && self.log.is_some() {
            eprintln!("--- {}, the end of its log ---\n{}---", self.name, tail(&self.log(), 150));
        }
    }
}

/// The last lines of a text, each ended.
pub(super) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all.iter().skip(all.len().saturating_sub(lines)).flat_map(|line| [line, "\n"]).collect()
}

#[expect(unsafe_code, reason = "kill has no safe wrapper in std")]
fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: plain system call; the pid is that of a child that has not been waited for.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Lifts this process's limit of open files, and so that of its children, as far as it may: thousands of streams need
/// more than the usual 1,024.
#[expect(unsafe_code, reason = "limits have no safe wrapper in std")]
pub(crate) fn lift_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on a struct of our own.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Spawns on a thread that lives as long as this process: the kernel sends the death signal when the *thread* that
/// spawned the child ends, and a thread of a test or of a pool ends early.
fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in jobs {
                die_with_parent(&mut command);
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    spawner.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

#[expect(unsafe_code, reason = "only prctl ties a child's life to ours when we are killed")]
fn die_with_parent(command: &mut Command) {
    let parent = std::process::id().cast_signed();
    // SAFETY: both calls are async-signal-safe and touch no memory of the parent.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above.
            if libc::getppid() != parent { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
        });
    }
}

/// The root of the repository.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// `envoy/envoy.yaml`.
pub(super) fn envoy_yaml() -> PathBuf {
    workspace().join("envoy/envoy.yaml")
}

fn target_directory() -> PathBuf {
    let named = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    workspace().join(named)
}

/// The Envoy to use: `ENVOY_BIN`, else what `scripts/get-envoy` has fetched (version in `ENVOY`).
pub(super) fn envoy_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("ENVOY_BIN").filter(|path| !path.is_empty()) {
        let path = workspace().join(path);
        File::open(&path).with_context(|| format!("ENVOY_BIN={}", path.display()))?;
        return Ok(path);
    }
    let version = env::var("ENVOY").ok().filter(|version| !version.is_empty());
    let path = target_directory().join("envoy").join(version.as_deref().unwrap_or("1.40.0")).join("envoy");
    if !path.is_file() {
        bail!("no Envoy at {}: run `make setup`, or set ENVOY_BIN", path.display());
    }
    Ok(path)
}

/// The module that `make wasm` builds to be shipped.
pub fn filter_wasm() -> Result<PathBuf> {
    built_wasm("filter")
}

/// A module that `make wasm` builds: `filter` or `filter_crash_for_tests`.
pub(crate) fn built_wasm(name: &str) -> Result<PathBuf> {
    let path = target_directory().join("wasm32-wasip1/wasm").join(name).with_extension("wasm");
    if !path.is_file() {
        bail!("no module at {}: run `make wasm`", path.display());
    }
    Ok(path)
}

/// A program of this workspace, built with the same profile as the caller.
pub fn workspace_binary(name: &str) -> Result<PathBuf> {
    let me = env::current_exe()?;
    let directory = me.parent().context("a program without a directory")?;
    // Tests are in target/debug/deps, programs in target/debug.
    let directory = if directory.ends_with("deps") { directory.parent().unwrap_or(directory) } else { directory };
    let path = directory.join(name);
    if !path.is_file() {
        bail!("no {}: run `cargo build --workspace --bins`", path.display());
    }
    Ok(path)
}
