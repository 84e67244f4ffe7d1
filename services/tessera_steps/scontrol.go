package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

// Scontrol writes out and folds lists of hosts, which needs nobody. Everything else it refuses.
func scontrol(arguments []string) int {
	if len(arguments) < 2 || arguments[0] != "show" {
		return complain("scontrol", 1, "%s: only `show hostnames` and `show hostlist` are here: ask for the job outside of it (tessera get, tessera cancel)", strings.Join(arguments, " "))
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
		return complain("scontrol", 1, "show %s: only `show hostnames` and `show hostlist` are here", arguments[1])
	}
	return 0
}
