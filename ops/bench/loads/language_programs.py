"""Seven programs in Python and in JavaScript, which is TypeScript without types: node executes the
same text. Each is a function of its size; in both languages it has the same result."""

from __future__ import annotations

from typing import NamedTuple

from rookery.schemas.run import Language

__all__ = ["PROGRAMS", "LanguageProgram"]


class LanguageProgram(NamedTuple):
    """One program in two languages."""

    name: str
    python: str
    typescript: str

    def code(self, language: Language, size: int) -> str:
        if language is Language.PYTHON:
            return f"{self.python}\nprogram({size})"
        return f"({self.typescript})({size})"


_FIB = LanguageProgram(
    "fib",
    """
def program(n):
    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)
    return sum(fib(16) + i for i in range(n))
""",
    """(n) => {
    const fib = (k) => k < 2 ? k : fib(k - 1) + fib(k - 2)
    let total = 0
    for (let i = 0; i < n; i++) total += fib(16) + i
    return total
}""",
)
_NBODY = LanguageProgram(
    "nbody",
    """
from math import sqrt
def program(n):
    bodies = [[i * 1.5, i * 0.5 - 1, 2 - i * 0.25, 0.1 * i, 0.2, 0.0, 1.0 + i] for i in range(5)]
    for _ in range(n * 20):
        for i, a in enumerate(bodies):
            for j in range(i + 1, 5):
                b = bodies[j]
                x, y, z = a[0] - b[0], a[1] - b[1], a[2] - b[2]
                square = x * x + y * y + z * z + 0.01
                pull = 0.001 / (square * sqrt(square))
                a[3] -= x * b[6] * pull
                a[4] -= y * b[6] * pull
                a[5] -= z * b[6] * pull
                b[3] += x * a[6] * pull
                b[4] += y * a[6] * pull
                b[5] += z * a[6] * pull
        for body in bodies:
            body[0] += 0.001 * body[3]
            body[1] += 0.001 * body[4]
            body[2] += 0.001 * body[5]
    return bodies[0][0]
""",
    """(n) => {
    const bodies = []
    for (let i = 0; i < 5; i++)
        bodies.push([i * 1.5, i * 0.5 - 1, 2 - i * 0.25, 0.1 * i, 0.2, 0.0, 1.0 + i])
    for (let step = 0; step < n * 20; step++) {
        for (let i = 0; i < 5; i++) {
            const a = bodies[i]
            for (let j = i + 1; j < 5; j++) {
                const b = bodies[j]
                const x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2]
                const square = x * x + y * y + z * z + 0.01
                const pull = 0.001 / (square * Math.sqrt(square))
                a[3] -= x * b[6] * pull
                a[4] -= y * b[6] * pull
                a[5] -= z * b[6] * pull
                b[3] += x * a[6] * pull
                b[4] += y * a[6] * pull
                b[5] += z * a[6] * pull
            }
        }
        for (const body of bodies) {
            body[0] += 0.001 * body[3]
            body[1] += 0.001 * body[4]
            body[2] += 0.001 * body[5]
        }
    }
    return bodies[0][0]
}""",
)
_SORT = LanguageProgram(
    "sort",
    """
def program(n):
    total = 0
    for round in range(n):
        values = [(i * 7919 + round * 31) % 10007 for i in range(1500)]
        values.sort()
        total += values[700]
    return total
""",
    """(n) => {
    let total = 0
    for (let round = 0; round < n; round++) {
        const values = Array.from({ length: 1500 }, (_, i) => (i * 7919 + round * 31) % 10007)
        values.sort((a, b) => a - b)
        total += values[700]
    }
    return total
}""",
)
_JSON = LanguageProgram(
    "json",
    """
import json
def program(n):
    rows = [{"id": i, "name": f"item {i}", "price": i + 0.25, "tags": ["a", "b"], "sold": None}
            for i in range(50)]
    total = 0
    for round in range(n):
        text = json.dumps(rows, separators=(",", ":"))
        total += len(text) + json.loads(text)[round % 50]["id"]
    return total
""",
    """(n) => {
    const rows = Array.from({ length: 50 }, (_, i) =>
        ({ id: i, name: `item ${i}`, price: i + 0.25, tags: ["a", "b"], sold: null }))
    let total = 0
    for (let round = 0; round < n; round++) {
        const text = JSON.stringify(rows)
        total += text.length + JSON.parse(text)[round % 50].id
    }
    return total
}""",
)
_REGEX = LanguageProgram(
    "regex",
    r"""
import re
def program(n):
    text = " ".join(f"user{i}@host{i % 7}.com took {i * 3} ms;" for i in range(40))
    total = 0
    for round in range(n):
        for name, host in re.findall(r"(\w+)@(\w+)\.com", text):
            total += len(name) + len(host)
        total += len(re.sub(r"\d+", "#", text))
    return total
""",
    r"""(n) => {
    const text = Array.from({ length: 40 }, (_, i) =>
        `user${i}@host${i % 7}.com took ${i * 3} ms;`).join(" ")
    let total = 0
    for (let round = 0; round < n; round++) {
        for (const [, name, host] of text.matchAll(/(\w+)@(\w+)\.com/g))
            total += name.length + host.length
        total += text.replace(/\d+/g, "#").length
    }
    return total
}""",
)
_DICT = LanguageProgram(
    "dict",
    """
def program(n):
    counts = {}
    for i in range(n * 1000):
        key = f"k{i % 997}"
        counts[key] = counts.get(key, 0) + i
    return sum(counts.values()) + len(counts)
""",
    """(n) => {
    const counts = new Map()
    for (let i = 0; i < n * 1000; i++) {
        const key = `k${i % 997}`
        counts.set(key, (counts.get(key) ?? 0) + i)
    }
    let total = counts.size
    for (const value of counts.values()) total += value
    return total
}""",
)
_STRINGS = LanguageProgram(
    "strings",
    """
def program(n):
    text = " ".join(f"word{i} of the text" for i in range(200))
    total = 0
    for round in range(n):
        words = [word[1:] + word[0].upper() for word in text.split(" ")]
        joined = "-".join(words).replace("fO", "of")
        total += len(joined) + joined.count("heT") + joined.find("199")
    return total
""",
    """(n) => {
    const text = Array.from({ length: 200 }, (_, i) => `word${i} of the text`).join(" ")
    let total = 0
    for (let round = 0; round < n; round++) {
        const words = text.split(" ").map((word) => word.slice(1) + word[0].toUpperCase())
        const joined = words.join("-").replaceAll("fO", "of")
        total += joined.length + joined.split("heT").length - 1 + joined.indexOf("199")
    }
    return total
}""",
)

PROGRAMS = (_FIB, _NBODY, _SORT, _JSON, _REGEX, _DICT, _STRINGS)
