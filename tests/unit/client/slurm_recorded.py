"""
What a real Slurm (22.05.8) answered to command lines, each seen there: exit code, lines of stdout and stderr.

Its jobs, of user root in account root: 1 and 2 `wrap` have ended well, 3 `bad` with exit code 3, 4 `wait` waits in
partition busy, which is down, 5 `long` runs with a limit of ten minutes, 6 `arr` is an array of four with two at once,
8 and 9 are its first tasks. Of lines the words are compared, without regard to their order and to the blanks between.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """A command line and its answer; of `err` the beginning. `out` is None where only the code is a fact."""

    line: str
    out: str | None = ""
    code: int = 0
    err: str = ""


QUEUED = """\
6_[2-3%2] batch arr root PD 0:00 1 (JobArrayTaskLimit)
5 batch long root R 0:00 1 n1
6_0 batch arr root R 0:00 1 n1
6_1 batch arr root R 0:00 1 n1
4 busy wait root PD 0:00 1 (PartitionDown)
"""
QUEUED_LONG = """\
6_[2-3%2] batch arr root PENDING 0:00 UNLIMITED 1 (JobArrayTaskLimit)
5 batch long root RUNNING 0:00 10:00 1 n1
6_0 batch arr root RUNNING 0:00 UNLIMITED 1 n1
6_1 batch arr root RUNNING 0:00 UNLIMITED 1 n1
4 busy wait root PENDING 0:00 UNLIMITED 1 (PartitionDown)
"""
ENDED_TOO = (
    QUEUED
    + """\
1 batch wrap root CD 0:00 1 n1
2 batch wrap root CD 0:00 1 n1
3 batch bad root F 0:00 1 (NonZeroExitCode)
"""
)
TITLES = "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n"
REASONS = """\
JOBID ST REASON
1 CD None
2 CD None
3 F NonZeroExitCode
6_[2-3%2] PD JobArrayTaskLimit
5 R None
6_0 R None
6_1 R None
4 PD PartitionDown
"""
EACH_TASK = "1\n2\n3\n6_2\n6_3\n5\n6_0\n6_1\n4\n"
ACCOUNTED = """\
1|wrap|batch|root|COMPLETED|0:0
2|wrap|batch|root|COMPLETED|0:0
3|bad|batch|root|FAILED|3:0
4|wait|busy|root|PENDING|0:0
5|long|batch|root|RUNNING|0:0
6_0|arr|batch|root|RUNNING|0:0
6_1|arr|batch|root|RUNNING|0:0
6_[2-3%2]|arr|batch|root|PENDING|0:0
"""
INVALID = "slurm_load_jobs error: Invalid job id specified"
RECORDED: tuple[Recorded, ...] = (
    Recorded("squeue", TITLES + QUEUED),
    Recorded("squeue -h", QUEUED),
    Recorded("squeue -t all", TITLES + ENDED_TOO),
    Recorded("squeue --states=all --noheader", ENDED_TOO),
    Recorded("squeue --sta=all -h", None, 2),  # ambiguous there, too: --start, --states
    Recorded("squeue --stat=all --noh", ENDED_TOO),
    Recorded("squeue -j 1", TITLES),
    Recorded("squeue -j 99999", "", 1, INVALID),
    Recorded("squeue -j 1,99999", TITLES),
    Recorded("squeue -j 4,99999", TITLES + "4 busy wait root PD 0:00 1 (PartitionDown)\n"),
    Recorded("squeue --jobs=4 -o '%i %t'", "JOBID ST\n4 PD\n"),
    Recorded("squeue --job 4,5 -h -o '%i %t %T'", "4 PD PENDING\n5 R RUNNING\n"),
    Recorded("squeue -j abc", "", 1),
    Recorded("squeue -t all -O JobArrayID,StateCompact,Reason --user root", REASONS),
    Recorded("squeue -u root -o %i -h -r -t all", EACH_TASK),
    Recorded("squeue --name=arr -h -o '%i|%j|%T'", "6_[2-3%2]|arr|PENDING\n6_0|arr|RUNNING\n6_1|arr|RUNNING\n"),
    Recorded("squeue -p nosuch", TITLES),
    Recorded(
        "squeue -j 5 -h -o '%l|%C|%D|%k|%v|%w|%f|%z|%o|%X|%Y|%y'",
        "10:00|1|1|(null)|(null)|(null)|(null)|*:*:*|(null)|N/A|(null)|0\n",
    ),
    Recorded("squeue -j 4 -h -o '%S|%B|%L|%N|%m'", "N/A|n/a|UNLIMITED||100M\n"),
    Recorded("squeue -j 4 -o '%a|%A|%c|%e|%F|%g|%G|%K|%l|%Q|%u|%U|%V|%b'", None),
    Recorded(
        "squeue --start -j 4",
        "JOBID PARTITION NAME USER ST START_TIME NODES SCHEDNODES NODELIST(REASON)\n"
        "4 busy wait root PD N/A 1 (null) (PartitionDown)\n",
    ),
    Recorded("squeue -t FOO", "", 2),
    Recorded("squeue -u nosuchuser,root -j 4 -h -o %i", "4\n"),
    Recorded("sacct -X -n -P -o JobID,JobName,Partition,Account,State,ExitCode", ACCOUNTED),
    Recorded("sacct -X -p -j 1 -o JobID,State", "JobID|State|\n1|COMPLETED|\n"),
    Recorded("sacct -X -j 1 -o JobID,JobName", "JobID JobName\n----- -------\n1 wrap\n"),
    Recorded(
        "sacct -X -o JobID,State,NodeList --parsable2 -j 4 -j 5",
        "JobID|State|NodeList\n4|PENDING|None assigned\n5|RUNNING|n1\n",
    ),
    Recorded("sacct -X -n -P -j 1,3 -o JobID,NodeList,Timelimit,NNodes", "1|n1|UNLIMITED|1\n3|n1|00:10:00|1\n"),
    Recorded("squeue -t all -h -j 1,3 -o '%i|%N|%R|%B|%l'", "1|n1|n1|n1|UNLIMITED\n3|n1|(NonZeroExitCode)|n1|10:00\n"),
    Recorded("squeue -t all -h -w n1 -o %i", "1\n2\n3\n5\n6_0\n6_1\n"),
    Recorded("squeue -w n[1-2] -h -o %i", "5\n6_0\n6_1\n"),
    Recorded("squeue -l -h", QUEUED_LONG),
    Recorded("squeue -r -h -j 6 -t PD -o '%i %r'", "6_2 JobArrayTaskLimit\n6_3 JobArrayTaskLimit\n"),
    Recorded("sacct -S 2030-01-01 -X -n -o JobID", "", 2),
    Recorded("sacct -X -j 99999 -n", ""),
    Recorded("sacct -X -j 99999 -P -o JobID,State", "JobID|State\n"),
    Recorded("sacct -X --noheader --format=jobid,state%20 --job '4,5'", "4 PENDING\n5 RUNNING\n"),
    Recorded("sacct -X -j 6 -n -P -o JobID,JobIDRaw,State", "6_0|8|RUNNING\n6_1|9|RUNNING\n6_[2-3%2]|6|PENDING\n"),
    Recorded("sacct -b -X -j 4", "JobID State ExitCode\n----- ------- --------\n4 PENDING 0:0\n"),
    Recorded("sacct -X -o jobid,nosuch", "", 2),
    Recorded("sacct --start=now-1hours -X -n -P -j 3 -o JobID,State", "3|FAILED\n"),
    Recorded("sacct -S now-2days -E now -X -n -P -j 3 -o JobID%20", "3\n"),
    Recorded("sacct -X --parsable2 --clusters all --noheader --format=JobIdRaw,State --name bad", "3|FAILED\n"),
    Recorded("sacct -n -X -j 5 -o nodelist%-256", "n1\n"),
    Recorded("scontrol show job 99999", "", 1, INVALID),
    Recorded("scontrol show job abc", "", 1),
    Recorded("scontrol show hostnames 'n[1-3]'", "n1\nn2\nn3\n"),
    Recorded("scontrol show nosuch", "", 2),
)
"""Codes 2 are Tessera's own of a command line that cannot be meant; Slurm has 1 or 255 there."""
SHOWN = (
    "JobId JobName UserId GroupId MCS_label Priority Nice Account QOS JobState Reason "
    "Dependency Requeue Restarts BatchFlag Reboot ExitCode RunTime TimeLimit TimeMin SubmitTime "
    "EligibleTime StartTime EndTime Deadline Partition NodeList BatchHost NumNodes NumCPUs "
    "NumTasks CPUs/Task TRES"
)
"""Names of `scontrol show job` that Tessera has as well, in Slurm's order."""
