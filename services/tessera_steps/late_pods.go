package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	ticksPerSecond = 100 // of the times in /proc, on every architecture that Linux has
	tellAfter      = 5 * time.Second
)

// AwaitPods waits for pods that have not started yet, as srun does: a launcher's first word may come before the image of
// another pod. Once the run is older than that may take, it waits for none.
func awaitPods(r run, config *tls.Config, program string, ranks []int) {
	left := joinPatience - ageOfRun()
	for began, told := time.Now(), false; len(ranks) > 0 && time.Since(began) < left; {
		p, err := dial(config, r.address(ranks[0]), r.port)
		if err == nil {
			p.Close()
		}
		if err == nil || errors.Is(err, errStranger) {
			ranks = ranks[1:]
			continue
		}
		if !told && time.Since(began) > tellAfter {
			told = true
			fmt.Fprintf(os.Stderr, "%s: not started yet: %s\n", program, r.node(ranks[0]))
		}
		time.Sleep(retryEvery)
	}
}

// AgeOfRun is how long the runner of this pod runs; joinPatience where it cannot be known.
func ageOfRun() time.Duration {
	pid, err := strconv.Atoi(os.Getenv("TESSERA_STEPS_PID"))
	if err != nil {
		return joinPatience
	}
	return ageOf(pid)
}

func ageOf(pid int) time.Duration {
	fields, err := statFields(pid)
	if err != nil {
		return joinPatience
	}
	uptime, _ := os.ReadFile("/proc/uptime")
	since, _, _ := strings.Cut(string(uptime), " ")
	up, err := strconv.ParseFloat(since, 64)
	started, err2 := strconv.ParseFloat(fields[19], 64)
	if errors.Join(err, err2) != nil {
		return joinPatience
	}
	return time.Duration((up - started/ticksPerSecond) * float64(time.Second))
}
