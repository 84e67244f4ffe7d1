package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Refused are the words of scontrol that only the machine from which one submits has, with what to write there.
var refusedOfScontrol = map[string]string{
	"requeuehold": "tessera scontrol hold JOB, then tessera scontrol requeue JOB", "hold": "tessera scontrol hold JOB", "uhold": "tessera scontrol hold JOB",
	"release": "tessera scontrol release JOB", "update": "tessera scontrol update JobId=JOB NAME=VALUE", "suspend": "tessera scontrol hold JOB, then tessera scontrol requeue JOB",
	"resume": "tessera scontrol release JOB", "ping": "tessera scontrol ping", "top": "tessera scontrol update JobId=JOB QOS=CLASS",
}

// Scontrol writes out and folds lists of hosts, shows the own job and asks that it begins anew. All else it refuses.
func scontrol(arguments []string) int {
	oneline := false
	arguments = slices.DeleteFunc(arguments, func(each string) bool {
		oneline = oneline || each == "-o" || each == "--oneliner"
		return each == "-o" || each == "--oneliner" || each == "-d" || each == "--details" || each == "-Q" || each == "--quiet" || each == "-v"
	})
	if len(arguments) > 0 && arguments[0] == "requeue" {
		return requeue(arguments[1:])
	}
	if len(arguments) > 0 {
		if instead, refused := refusedOfScontrol[arguments[0]]; refused {
			return complain("scontrol", 1, "%s is refused in a pod: on the machine from which you submit, write %s", arguments[0], instead)
		}
	}
	if len(arguments) < 2 || arguments[0] != "show" {
		return complain("scontrol", 1, "%s is refused: here are show job, show hostnames, show hostlist and requeue, for the own job", strings.Join(arguments, " "))
	}
	if what, name, _ := strings.Cut(arguments[1], "="); len(what) > 0 && (strings.HasPrefix("jobs", what) || what == "jobid" || what == "JobId") {
		return showJob(append(slices.DeleteFunc([]string{name}, func(each string) bool { return each == "" }), arguments[2:]...), oneline)
	}
	list := strings.Join(arguments[2:], ",")
	if list == "" {
		list = cmp.Or(os.Getenv("SLURM_JOB_NODELIST"), os.Getenv("SLURM_NODELIST"))
	}
	if r, err := thisRun(); list == "" && err == nil {
		list = strings.Join(r.nodes(), ",")
	}
	hosts, err := expand(list)
	switch {
	case err != nil:
		return complain("scontrol", 1, "%v", err)
	case len(hosts) == 0:
		return complain("scontrol", 1, "no list of hosts: name one, or set SLURM_JOB_NODELIST")
	case strings.HasPrefix("hostnames", arguments[1]) && len(arguments[1]) > 5:
		fmt.Println(strings.Join(hosts, "\n"))
	case strings.HasPrefix("hostlist", arguments[1]) && len(arguments[1]) > 5:
		fmt.Println(fold(hosts))
	default:
		return complain("scontrol", 1, "show %s is refused in a pod: here are show job, show hostnames and show hostlist; on the machine from which you submit, write tessera scontrol show %s", arguments[1], arguments[1])
	}
	return 0
}
