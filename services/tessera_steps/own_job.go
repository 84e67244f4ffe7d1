package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const clockTicks = 100 // of a second, in which Linux tells programs of times

// JobField is one column of squeue: its title and its value, from what the pod knows.
type jobField struct {
	title string
	value func(jobHere) string
}

// JobHere is the own job as its pod knows it.
type jobHere struct {
	run
	began time.Time // of this pod's runner, which a moment is before the script
	ends  time.Time // zero: no limit is known
	now   time.Time
}

func thisJob() (jobHere, error) {
	found, err := thisRun()
	here := jobHere{run: found, now: time.Now()}
	if err != nil {
		return here, err
	}
	if said, err := strconv.ParseInt(os.Getenv("SLURM_JOB_START_TIME"), 10, 64); err == nil {
		here.began = time.Unix(said, 0)
	} else {
		here.began = startOf(os.Getenv("TESSERA_STEPS_PID"), here.now)
	}
	if said, err := strconv.ParseInt(os.Getenv("SLURM_JOB_END_TIME"), 10, 64); err == nil {
		here.ends = time.Unix(said, 0)
	}
	return here, nil
}

// StartOf is when a process began; now where that cannot be known.
func startOf(process string, now time.Time) time.Time {
	pid, _ := strconv.Atoi(process)
	fields, err := statFields(pid)
	uptime, err2 := os.ReadFile("/proc/uptime")
	if err != nil || err2 != nil {
		return now
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	first, _, _ := strings.Cut(string(uptime), " ")
	up, err2 := strconv.ParseFloat(first, 64)
	if err != nil || err2 != nil {
		return now
	}
	return now.Add(-time.Duration(up*float64(time.Second)) + time.Duration(ticks)*time.Second/clockTicks)
}

// Span writes a time as Slurm does: 1-02:03:04, 2:03:04, 3:04.
func span(d time.Duration) string {
	seconds := max(0, int(d/time.Second))
	days, hours, minutes := seconds/86400, seconds/3600%24, seconds/60%60
	switch {
	case days > 0:
		return fmt.Sprintf("%d-%02d:%02d:%02d", days, hours, minutes, seconds%60)
	case hours > 0:
		return fmt.Sprintf("%d:%02d:%02d", hours, minutes, seconds%60)
	}
	return fmt.Sprintf("%d:%02d", minutes, seconds%60)
}

func (j jobHere) limit() string {
	if j.ends.IsZero() {
		return "N/A"
	}
	return span(j.ends.Sub(j.began))
}

func (j jobHere) id() string {
	array, task := os.Getenv("SLURM_ARRAY_JOB_ID"), os.Getenv("SLURM_ARRAY_TASK_ID")
	if array != "" && task != "" {
		return array + "_" + task
	}
	return j.job
}

func (j jobHere) tasks() string { return cmp.Or(os.Getenv("SLURM_NTASKS"), strconv.Itoa(j.size)) }

func stamp(at time.Time) string {
	if at.IsZero() {
		return "Unknown"
	}
	return at.Format("2006-01-02T15:04:05")
}

func ofVariable(title string, variables ...string) jobField {
	return jobField{title, func(jobHere) string {
		for _, each := range variables {
			if value := os.Getenv(each); value != "" {
				return value
			}
		}
		return "N/A"
	}}
}

// SqueueLetters are the letters of `squeue -o` whose values a pod knows; of the others it knows nothing.
var squeueLetters = map[byte]jobField{
	'i': {"JOBID", jobHere.id},
	'A': {"JOBID", func(j jobHere) string { return j.job }},
	'j': ofVariable("NAME", "SLURM_JOB_NAME", "TESSERA_JOB_NAME"),
	'P': ofVariable("PARTITION", "SLURM_JOB_PARTITION"),
	'u': ofVariable("USER", "SLURM_JOB_USER", "USER"),
	'a': ofVariable("ACCOUNT", "SLURM_JOB_ACCOUNT"),
	't': {"ST", func(jobHere) string { return "R" }},
	'T': {"STATE", func(jobHere) string { return "RUNNING" }},
	'M': {"TIME", func(j jobHere) string { return span(j.now.Sub(j.began)) }},
	'l': {"TIME_LIMIT", jobHere.limit},
	'L': {"TIME_LEFT", func(j jobHere) string {
		if j.ends.IsZero() {
			return "N/A"
		}
		return span(j.ends.Sub(j.now))
	}},
	'S': {"START_TIME", func(j jobHere) string { return stamp(j.began) }},
	'e': {"END_TIME", func(j jobHere) string { return stamp(j.ends) }},
	'D': {"NODES", func(j jobHere) string { return strconv.Itoa(j.size) }},
	'N': {"NODELIST", func(j jobHere) string { return fold(j.nodes()) }},
	'R': {"NODELIST(REASON)", func(j jobHere) string { return fold(j.nodes()) }},
	'B': {"EXEC_HOST", func(j jobHere) string { return j.node(0) }},
	'r': {"REASON", func(jobHere) string { return "None" }},
	'Z': ofVariable("WORK_DIR", "SLURM_SUBMIT_DIR"),
	'F': ofVariable("ARRAY_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID"),
	'K': ofVariable("ARRAY_TASK_ID", "SLURM_ARRAY_TASK_ID"),
}

const usualFormat = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"

// Formatted writes the titles and the one row of a format of squeue.
func formatted(format string, job jobHere) (titles, row string, err error) {
	var first, second strings.Builder
	for index := 0; index < len(format); index++ {
		if format[index] != '%' {
			first.WriteByte(format[index])
			second.WriteByte(format[index])
			continue
		}
		end := index + 1
		for end < len(format) && (format[end] == '.' || format[end] >= '0' && format[end] <= '9') {
			end++
		}
		if end == len(format) {
			return "", "", fmt.Errorf("%q ends within a field", format)
		}
		field, known := squeueLetters[format[end]]
		if !known {
			return "", "", fmt.Errorf("%%%c is refused: a pod does not know that of its job: on the machine from which you submit, write tessera squeue -j %s -o %q", format[end], job.id(), format)
		}
		size := format[index+1 : end]
		first.WriteString(padded(field.title, size))
		second.WriteString(padded(field.value(job), size))
		index = end
	}
	return strings.TrimRight(first.String(), " "), strings.TrimRight(second.String(), " "), nil
}

// Padded cuts and fills a value to a width: `.8` from the left, `8` to the right.
func padded(value, size string) string {
	width, err := strconv.Atoi(strings.TrimPrefix(size, "."))
	if err != nil || width > 1024 {
		return value
	}
	if len(value) > width {
		value = value[:width]
	}
	if strings.HasPrefix(size, ".") {
		return strings.Repeat(" ", width-len(value)) + value
	}
	return value + strings.Repeat(" ", width-len(value))
}

// Squeue shows the own job: nothing here knows of another.
func squeue(arguments []string) int {
	format, titled, shown := usualFormat, true, true
	job, err := thisJob()
	if err != nil {
		return complain("squeue", 1, "%v", err)
	}
	for index := 0; index < len(arguments); index++ {
		word := arguments[index]
		if strings.HasPrefix(word, "-h") && len(word) > 2 {
			word, titled = "-"+word[2:], false
		}
		name, value, joined := strings.Cut(word, "=")
		if len(word) > 2 && word[0] == '-' && word[1] != '-' && strings.IndexByte("jotun", word[1]) >= 0 {
			name, value, joined = word[:2], word[2:], true
		}
		needs := slices.Contains([]string{"-j", "--jobs", "--job", "-o", "--format", "-t", "--states", "--state", "-u", "--user", "-n", "--name"}, name)
		if needs && !joined {
			if index++; index == len(arguments) {
				return complain("squeue", 1, "%s: a value is missing", name)
			}
			value = arguments[index]
		}
		switch name {
		case "-j", "--jobs", "--job":
			for _, each := range strings.Split(value, ",") {
				if err := isOwnJob(each, "tessera squeue -j"); err != nil {
					return complain("squeue", 1, "%v", err)
				}
			}
		case "-o", "--format":
			format = value
		case "-h", "--noheader":
			titled = false
		case "-t", "--states", "--state":
			states := strings.Split(strings.ToUpper(value), ",")
			shown = slices.Contains(states, "R") || slices.Contains(states, "RUNNING") || slices.Contains(states, "ALL")
		case "-u", "--user":
			shown = shown && slices.Contains(strings.Split(value, ","), os.Getenv("USER"))
		case "-n", "--name":
			shown = shown && slices.Contains(strings.Split(value, ","), squeueLetters['j'].value(job))
		case "--me", "-a", "--all", "-r", "--array", "-v", "--verbose":
		default:
			return complain("squeue", 1, "%s is refused: %s: here are -j, --me, -h, -t, -u, -n and -o; on the machine from which you submit, write tessera squeue %s", word, elsewhere, strings.Join(arguments, " "))
		}
	}
	titles, row, err := formatted(format, job)
	if err != nil {
		return complain("squeue", 1, "%v", err)
	}
	if titled {
		fmt.Println(titles)
	}
	if shown {
		fmt.Println(row)
	}
	return 0
}

// ShowJob is `scontrol show job`, with the fields that a pod knows.
func showJob(named []string, oneline bool) int {
	job, err := thisJob()
	if err != nil {
		return complain("scontrol", 1, "%v", err)
	}
	for _, each := range named {
		if err := isOwnJob(each, "tessera scontrol show job"); err != nil {
			return complain("scontrol", 1, "%v", err)
		}
	}
	attempt, _ := strconv.Atoi(os.Getenv("TESSERA_ATTEMPT"))
	value := func(letter byte) string { return squeueLetters[letter].value(job) }
	lines := []string{
		"JobId=" + job.job + " JobName=" + value('j'),
		"   JobState=RUNNING Reason=None Dependency=(null)",
		fmt.Sprintf("   Restarts=%d BatchFlag=1", max(0, attempt-1)),
		"   RunTime=" + clock(job.now.Sub(job.began)) + " TimeLimit=" + job.limit(),
		"   StartTime=" + stamp(job.began) + " EndTime=" + stamp(job.ends),
		"   Partition=" + value('P') + " NodeList=" + value('N') + " BatchHost=" + job.node(0),
		fmt.Sprintf("   NumNodes=%d NumTasks=%s CPUs/Task=%s", job.size, job.tasks(), cmp.Or(os.Getenv("SLURM_CPUS_PER_TASK"), "1")),
		"   WorkDir=" + value('Z'),
	}
	if array := os.Getenv("SLURM_ARRAY_JOB_ID"); array != "" {
		lines[0] = "JobId=" + job.job + " ArrayJobId=" + array + " ArrayTaskId=" + value('K') + " JobName=" + value('j')
	}
	if oneline {
		for index := range lines {
			lines[index] = strings.TrimSpace(lines[index])
		}
		fmt.Println(strings.Join(lines, " "))
		return 0
	}
	fmt.Println(strings.Join(lines, "\n") + "\n")
	return 0
}

// Clock is a span with all of its parts: 00:03:04.
func clock(d time.Duration) string {
	seconds := max(0, int(d/time.Second))
	text := fmt.Sprintf("%02d:%02d:%02d", seconds/3600%24, seconds/60%60, seconds%60)
	if days := seconds / 86400; days > 0 {
		text = fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

// Absent are Slurm's programs that a pod has not, with what to do instead.
var absent = map[string]string{
	"sbatch":   "a job submits no other from its pods: submit it there, with --dependency=afterok:JOB where it is to follow this one",
	"salloc":   "this job has its pods already: start tasks in them by srun",
	"sacct":    "ask there: tessera sacct -j JOB; here squeue and scontrol show job tell of the own job",
	"sinfo":    "ask there: tessera sinfo; here scontrol show hostnames names the pods of the own job",
	"sstat":    "ask there: tessera top",
	"sprio":    "ask there: tessera sprio",
	"sshare":   "ask there: tessera sshare",
	"sreport":  "ask there: tessera sreport",
	"sacctmgr": "ask there: tessera sacctmgr",
}

func sayAbsent(name string) func([]string) int {
	return func([]string) int {
		return complain(name, 1, "it is not there in a pod, but on the machine from which you submit: %s", absent[name])
	}
}
