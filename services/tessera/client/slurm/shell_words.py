"""
The simple commands of a shell script, with their lines.

As much of the grammar as it takes to find a command and its words: quotes, comments, continued lines, redirections,
here-documents, lists, substitutions. What a command does when it runs (aliases, `eval`) is not known here. Pure.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\r]|\\\n)+)
    | (?P<comment>\#[^\n]*)
    | (?P<newline>\n)
    | (?P<here><<-?[ \t]*['"\\]?(?P<end>\w+)['"]?)
    | (?P<redirection>[0-9]*(?:&>>?|[<>]{1,3}&?))
    | (?P<operator>&&|\|\||;;|[;&|()`])
    | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\{[^}\n]*\}|[^\s;&|()<>'"\\`])+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=(?P<value>.*)", re.DOTALL)
_RESERVED = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "coproc"})


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words, quotes taken off; whether the script goes on while it runs."""

    line: int
    words: tuple[str, ...]
    background: bool = False


@dataclass(slots=True)
class _Open:
    """A command that is being read, or an array's `values`; `skip` where the next word is a file's name."""

    line: int = 0
    words: list[str] = field(default_factory=list)
    skip: bool = False
    values: bool = False

    @property
    def runs(self) -> bool:
        """Whether it is a command; so are an array's values that a step is made of, and not the `$` of `$(…)` alone."""
        return bool(self.words) and self.words != ["$"] and (not self.values or self.words[0] == "srun")


def simple_commands(text: str, first_line: int = 1) -> Iterator[Simple]:
    """Every simple command of the text, those of substitutions before the one that they are part of."""
    outer: list[_Open] = []
    now, line, ends = _Open(), first_line, list[str]()
    at = 0
    while (token := _TOKEN.match(text, at)) is not None:
        kind, said, at = token.lastgroup if token.lastgroup != "end" else "here", token[0], token.end()
        if kind == "word":
            yield from _within(said, line)
            _take(now, said, line)
        elif kind == "redirection":
            now.skip = True
        elif kind == "here":
            ends.append(token["end"])
        elif said == "(":
            outer.append(now)
            now = _Open(values=text[token.start() - 1 : token.start()] == "=")
        elif kind == "operator" or (kind == "newline" and not now.values):
            if now.runs:
                yield Simple(now.line, tuple(now.words), background=said == "&")
            defines = said == ")" and not now.words and text[token.start() - 1] == "("
            now = outer.pop() if said == ")" and outer and not defines else _Open()
            outer = outer[:-1] if defines else outer
        line += said.count("\n")
        while kind == "newline" and ends:
            end = re.compile(rf"^\t*{ends.pop(0)}$", re.MULTILINE).search(text, at)
            behind = len(text) if end is None else end.end()
            line, at = line + text.count("\n", at, behind), behind
    if now.runs:
        yield Simple(now.line, tuple(now.words))


def _take(command: _Open, said: str, line: int) -> None:
    """One more word, unless it is a file's name, or before the command an assignment or a reserved word."""
    if command.skip:
        command.skip = False
    elif command.words or not (said in _RESERVED or _ASSIGNED.fullmatch(said)):
        command.words.append(unquoted(said))
        command.line = command.line or line


def _within(word: str, line: int) -> Iterator[Simple]:
    """Commands in substitutions within quotes, and a command line that a variable is set to."""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is not None and re.match(r"""['"]srun\s""", assigned["value"]):
        yield from simple_commands(unquoted(assigned["value"]), line)
    for found in re.finditer(r"\$\((?!\()|`", word):
        if "'" not in word[: found.start()]:
            inner = word[found.end() :]
            yield from simple_commands(inner, line + word.count("\n", 0, found.start()))
            return


def unquoted(word: str) -> str:
    """The word without its quotes."""
    return re.sub(r"\\\n|\\(.)|['\"]", lambda found: found[1] or "", word, flags=re.DOTALL)
