"""`ssh` as launchers call it, and `scontrol show hostnames`."""

import os
import signal
import subprocess
from pathlib import Path

from tests.steps.pods import PATIENCE_SECONDS, wait_for


def test_a_command_runs_in_the_pod_by_name(pods, program: Path, tmp_path: Path):
    ssh = program.parent / "ssh"
    assert ssh.resolve() == program
    own = tmp_path / "image" / "ssh"
    own.parent.mkdir()
    own.write_text('#!/bin/sh\necho of the image: "$@"\n')
    own.chmod(0o755)
    script = f"""
ssh() {{ {ssh} "$@"; }}
ssh -x -o StrictHostKeyChecking=no -p 22 root@127.88.0.1 echo '$WHERE' '"a  b"'; echo $?
ssh -nq -oBatchMode=yes -l root 127.88.0.1 'exit 5'; echo $?
head -c 3000000 /dev/zero | ssh -T 127.88.0.1 sha256sum | cut -c 1-8
printf x | ssh -n 127.88.0.1 wc -c
(PATH=; ssh github.com true); echo $?
PATH={tmp_path}/image:$PATH
ssh -o ProxyJump=a -L 1:b:1 git@github.com git-upload-pack x; echo $?
ssh -V
ssh -L 1:a:1 127.88.0.1 true; echo $?
ssh 127.88.0.1; echo $?
ssh 127.88.0.1 'setsid bash -c "until [ -e go ]; do sleep 0.01; done; touch left" > /dev/null 2>&1 < /dev/null &
echo started'
touch go; until [ -e left ]; do sleep 0.01; done
"""
    with pods(2, script) as run:
        code, out, err = run.ended()
    assert code == 0
    lines = out.splitlines()
    assert lines[:3] == ["1 a  b", "0", "5"]
    handed = ["of the image: -o ProxyJump=a -L 1:b:1 git@github.com git-upload-pack x", "0", "of the image: -V"]
    assert lines[4:] == ["0", "255", *handed, "255", "255", "started"]
    assert "github.com: no pod of this run is called so: they are 127.88.0.[0-1]" in err
    assert "-L is refused" in err


def test_a_pod_that_has_not_started_is_waited_for_until_somebody_interrupts(pods, program: Path):
    script = f"""
set -m  # else a shell's background jobs ignore SIGINT
noted() {{ echo $! > $1.part; mv $1.part $1.pid; wait $!; echo $?; }}
{program.parent / "ssh"} 127.88.0.1 true & noted ssh
{program.parents[1] / "fallback" / "pdsh"} -w 127.88.0.[0-1] touch begun & noted pdsh
exit 1
"""
    with pods(1, script, {"TESSERA_WORLD_SIZE": "2"}) as run:
        for name in ("ssh", "pdsh"):
            assert run.pods[0].stderr.readline() == f"{name}: not reached yet: 127.88.0.1\n".encode()
            wait_for(run.path(f"{name}.pid").exists, f"the number of {name}")
            os.kill(int(run.path(f"{name}.pid").read_text()), signal.SIGINT)
        out, _ = run.pods[0].communicate(timeout=PATIENCE_SECONDS)
        assert not run.path("begun").exists()
    assert out.decode().splitlines() == ["255", "130"]


def test_lists_of_hosts_are_written_out(pods):
    script = """
scontrol show hostnames
SLURM_JOB_NODELIST='n[08-10],m' scontrol show hostnames
scontrol show hostnames 'a[1-2]b'
scontrol show hostlist a1,a2,a4
scontrol requeue 5; echo $?
"""
    with pods(2, script) as run:
        _, out, err = run.ended()
    assert out.split() == ["127.88.0.0", "127.88.0.1", "n08", "n09", "n10", "m", "a1b", "a2b", "a[1-2,4]", "1"]
    assert "scontrol: error: requeue: job 5 is not this one" in err


def test_the_programs_lie_where_a_pod_looks_for_them(program: Path, tmp_path: Path):
    for _ in range(2):  # an init container may run again
        subprocess.run([program, "install", tmp_path / "tessera"], check=True)
    installed = {str(path.relative_to(tmp_path / "tessera")) for path in (tmp_path / "tessera").rglob("*")}
    ours = {f"bin/{name}" for name in ("tessera-steps", "srun", "scontrol", "scancel", "squeue", "ssh")}
    absent = {"sbatch", "salloc", "sacct", "sinfo", "sstat", "sprio", "sshare", "sreport", "sacctmgr"}
    assert installed == {"bin", "fallback"} | ours | {f"fallback/{name}" for name in absent | {"pdsh"}}
