//! The commands in README and tutorial work as written, from the clone, with a new home.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sealstone_tests::{CommandResult, Daemon, Signal, binary, command, text};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the shell blocks of a page from one heading to the next of its level.
#[track_caller]
fn blocks(page: &str, heading: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join(page)).expect("the page is there");
    let start = page.find(heading).unwrap_or_else(|| panic!("no '{heading}'")) + heading.len();
    let section = page[start..].split("\n## ").next().unwrap_or_default();
    section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

/// A new user: home, terminal (with answers to password prompts from a file) and the started
/// system.
struct NewUser {
    home: TempDir,
    up: Daemon,
}

impl NewUser {
    /// Starts the system as in the line with `up`, on free ports.
    #[track_caller]
    fn start(line: &str) -> Self {
        let home = tempfile::tempdir().expect("temporary folder");
        let password = home.path().join("typed");
        fs::write(&password, "correct horse battery\n").expect("written");
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("narrowed");
        let words = line.split('#').next().unwrap_or_default();
        let words = words.trim().split_once("sealstone up").expect("a line that starts the system").1;
        let data = home.path().join("sealstone");
        assert_eq!(words.trim(), "--data ~/sealstone", "the test knows this line");
        let up = command(&["--json", "up", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        let up = Daemon::start(up);
        assert!(data.join("cluster.toml").exists() && data.join("admin-secret").exists());
        Self { home, up }
    }

    /// Runs a block in a shell that ends at the first failure.
    #[track_caller]
    fn types(&self, block: &str) -> CommandResult {
        let folder = binary().parent().expect("the binary is in a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let script = block.replace("$PWD/target/release", text(folder));
        let output = Command::new("bash")
            .args(["-eu", "-c", &script])
            .current_dir(root())
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:{path}", text(folder)))
            .env("SEALSTONE_PASSWORD_FILE", self.home.path().join("typed"))
            .env("SEALSTONE_LOG", "off")
            .env_remove("XDG_STATE_HOME")
            .env_remove("SEALSTONE_SESSION")
            .stdin(Stdio::null())
            .output();
        CommandResult::from(output.expect("bash is there"))
    }
}

#[test]
fn tour_and_then_tutorial_work_as_written() {
    let blocks = blocks("README.md", "## Five-minute tour");
    let [first, second] = blocks.as_slice() else { panic!("two terminals, two blocks: {blocks:?}") };
    let up = first.lines().find(|line| line.contains("sealstone up")).expect("it starts the system");
    let mut newcomer = NewUser::start(up);
    let start = Instant::now();
    // Without mounts all other lines are run.
    let skips = |line: &str| !sealstone_tests::can_mount() && line.contains("mount ");
    let typed: Vec<_> = second.lines().filter(|line| !skips(line)).collect();
    let printed = newcomer.types(&typed.join("\n")).ok().text();
    assert!(start.elapsed() < Duration::from_secs(300), "a tour of five minutes");
    for word in [
        "design/",
        "# The object disk",
        "protocol/",
        "alice",
        "/backup/protocol.tar",
        "-rw-------",
        "osd3",
        "3 of 3 active",
    ] {
        assert!(printed.contains(word), "'{word}' is missing in: {printed}");
    }
    // The session is invalid after logout.
    newcomer.types("export SEALSTONE_CLUSTER=~/sealstone/cluster.toml; sealstone ls").fails(3);
    tutorial_works_as_written(&mut newcomer);
    assert_eq!(newcomer.up.end(Signal::Terminate), 0);
}

/// Runs the tutorial for a reader who took the tour first, and has its users and files.
fn tutorial_works_as_written(newcomer: &mut NewUser) {
    let page = "docs/tutorial/first-steps.md";
    let keep = blocks(page, "## 2. Keep one running");
    assert!(keep[0].contains("sealstone up --data ~/sealstone"), "the same system");
    let mut rest = keep[1..].to_vec();
    rest.extend(blocks(page, "## 3. Add a person"));
    // The only step with a smaller file: tests run without optimisation.
    rest.extend(
        blocks(page, "## 4. Large files, pipes, scripts").iter().map(|block| block.replace("100M", "12M")),
    );
    rest.insert(0, "cd ~; cp -r OLDPWD/README.md . 2>/dev/null || true".replace("OLDPWD", text(&root())));
    // One terminal: exports of a block apply to the next; the large file is in the home.
    let script = rest.join("\n");
    let printed = newcomer.types(&script).ok().text();
    for word in ["admin", "README.md", "width", "osd1"] {
        assert!(printed.contains(word), "'{word}' is missing in: {printed}");
    }
    // Everything is still there after a kill.
    assert_eq!(newcomer.up.end(Signal::Kill), -1);
    let data = newcomer.home.path().join("sealstone");
    newcomer.up = Daemon::start(command(&[
        "--json",
        "up",
        "--data",
        text(&data),
        "--listen",
        newcomer.up.field("address"),
    ]));
    newcomer.types("cd ~; sealstone get /home-bob/big - | cmp - big").ok();
}

#[test]
fn tutorial_works_on_a_new_system() {
    let mut newcomer = NewUser::start("sealstone up --data ~/sealstone");
    tutorial_works_as_written(&mut newcomer);
    assert_eq!(newcomer.up.end(Signal::Terminate), 0);
}
