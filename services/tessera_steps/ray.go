package main

import (
	"os"
	"path/filepath"
	"syscall"
)

const rayScript = `head=$1 pdsh=$2
shift 2
ray start --head --port=6379 || exit
if [ "$TESSERA_WORLD_SIZE" -gt 1 ]; then
	"$pdsh" -S -x "$head" ray start --address="$head:6379" || exit
fi
RAY_ADDRESS="$head:6379" exec "$@"`

// WithRay makes this process a command of the first pod once Ray runs in every pod of the run and its nodes have joined
// the first one's. Ray's processes live on in their pods, and end with them.
func withRay(command []string) int {
	r, err := thisRun()
	if err != nil {
		return complain("tessera-steps", 1, "%v", err)
	}
	program, _ := os.Executable()
	pdsh := filepath.Join(filepath.Dir(filepath.Dir(program)), "fallback", "pdsh")
	err = syscall.Exec("/bin/sh", append([]string{"sh", "-c", rayScript, "ray", r.node(0), pdsh}, command...), os.Environ())
	return complain("tessera-steps", 127, "/bin/sh: %v", err)
}
