"""
`--signal=USR1@60`: a shell around the script hands the signal on.

Kubernetes sends a pod SIGTERM to its first process, so many seconds before it is killed. The shell that is the first
process here turns it into the signal that was asked for: to the script's own shell with `B:`, else to its steps, which
`srun` notes in a file.
"""

from tessera.client.slurm.values import SlurmWarning

STEPS = "TESSERA_STEPS"
"""Variable with the file in which steps note their process numbers."""
NOTED_STEP = f"""sh -c '{{ echo "$$" >>"${STEPS}"; }} 2>/dev/null; exec "$@"' srun "$@\""""
"""A step that notes its number and becomes the program."""


def around(warning: SlurmWarning) -> str:
    """A shell's text that runs its arguments and hands the signal on."""
    whom = '"$tessera_script"' if warning.to_script else f'$(cat "${STEPS}")'
    return f"""\
export {STEPS}="${{TMPDIR:-/tmp}}/tessera-steps-$$"
tessera_script='' tessera_told=''
tessera_tell() {{ tessera_told=yes; [ -z "$tessera_script" ] || kill -s {warning.signal} {whom}; }} 2>/dev/null
trap tessera_tell TERM
"$@" &
tessera_script=$!
${{tessera_told:+tessera_tell}}
while :; do
  wait "$tessera_script"; tessera_code=$?
  kill -0 "$tessera_script" 2>/dev/null || exit "$tessera_code"
done
"""
