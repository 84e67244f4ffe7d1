"""
The simple commands of a shell script, with their lines.

As much of the grammar as it takes to find a command and its words: quotes, comments, continued lines, redirections,
here-documents, lists, substitutions. What a command does when it runs (aliases, `eval`) is not known here. Pure.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\r]|\\\n)+)
    | (?P<comment>\#[^\n]*)
    | (?P<newline>\n)
    | (?P<here><<-?[ \t]*['"\\]?(?P<end>\w+)['"]?)
    | (?P<redirection>[0-9]*(?:&>>?|[<>]{1,3}&?))
    | (?P<arithmetic>\(\((?:[^()]|\([^()]*\))*\)\))
    | (?P<operator>&&|\|\||;;|[;&|()`])
    | (?P<word>(?:
        \\.
        | '[^']*'
        | "(?>\\.|\$\((?:[^()]|\([^()]*\))*\)|[^"\\])*"
        | \$\(\((?:[^()]|\([^()]*\))*\)\)
        | \$\{[^}\n]*\}
        | [^\s;&|()<>'"\\`]
      )+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=(?P<value>.*)", re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\((?!\()|`")
_RESERVED = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "coproc"})


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words, quotes taken off; whether the script goes on meanwhile, and where its output goes."""

    line: int
    words: tuple[str, ...]
    background: bool = False
    piped: bool = False
    captured: bool = False

    @property
    def name(self) -> str:
        """The program's name without its directory."""
        return self.words[0].rpartition("/")[2]


@dataclass(slots=True)
class _Open:
    """
    A command that is being read, or an array's `values`; `skip` where the next word is a file's name, `captured` in a
    substitution.
    """

    line: int = 0
    words: list[str] = field(default_factory=list)
    skip: bool = False
    values: bool = False
    captured: bool = False

    @property
    def runs(self) -> bool:
        """Whether it is a command; so are an array's values that a step is made of, and not the `$` of `$(…)` alone."""
        return bool(self.words) and self.words != ["$"] and (not self.values or self.words[0] == "srun")


def simple_commands(text: str, first_line: int = 1, *, captured: bool = False) -> Generator[Simple, None, int]:
    """
    Every simple command of the text, those of substitutions before the one that they are part of.

    Where it is `captured`, the text is that of a substitution up to the parenthesis that closes it, and behind. Returns
    where reading ended.
    """
    outer: list[_Open] = []
    now, line, ends = _Open(captured=captured), first_line, list[str]()
    at = 0
    while (token := _TOKEN.match(text, at)) is not None:
        kind, said, at = token.lastgroup if token.lastgroup != "end" else "here", token[0], token.end()
        if kind == "word":
            yield from _within(said, line)
            _take(now, said, line)
        elif kind == "redirection":
            now.skip = True
        elif said == "(":
            outer.append(now)
            before = text[token.start() - 1 : token.start()]
            now = _Open(values=before == "=", captured=now.captured or before == "$")
        elif kind == "operator" or (kind == "newline" and not now.values):
            if now.runs:
                yield Simple(now.line, tuple(now.words), said == "&", said == "|", now.captured)
            if captured and not outer and said in (")", "`"):
                return at
            defines = said == ")" and not now.words and text[token.start() - 1] == "("
            within = now.captured != (said == "`") and said != ")"
            now = outer.pop() if said == ")" and outer and not defines else _Open(captured=within)
            outer = outer[:-1] if defines else outer
        line += said.count("\n")
        ends += [token["end"]] if kind == "here" else []
        if kind == "newline" and ends:
            behind = _behind_documents(text, at, ends)
            line, at, ends = line + text.count("\n", at, behind), behind, []
    if now.runs:
        yield Simple(now.line, tuple(now.words), captured=now.captured)
    return at


def _behind_documents(text: str, at: int, ends: list[str]) -> int:
    """Ends of the here-documents that begin here, each with its own last line."""
    for end in ends:
        found = re.compile(rf"^\t*{end}$", re.MULTILINE).search(text, at)
        at = len(text) if found is None else found.end()
    return at


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
    at = 0
    while (found := _SUBSTITUTION.search(word, at)) is not None and "'" not in word[: found.start()]:
        inner = word[found.end() :]
        at = found.end() + (yield from simple_commands(inner, line + word.count("\n", 0, found.start()), captured=True))


def unquoted(word: str) -> str:
    """The word without its quotes."""
    return re.sub(r"\\\n|\\(.)|['\"]", lambda found: found[1] or "", word, flags=re.DOTALL)
