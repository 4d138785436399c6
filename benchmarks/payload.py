"""The 100-byte payload. It opens with a number: the job's own for drains, the instant of sending for latencies."""

SIZE = 100
DIGITS = 20


def payload(number: int) -> str:
    return f"{number:0{DIGITS}d}".ljust(SIZE, "x")


def payloads(count: int) -> list[str]:
    return [payload(number) for number in range(count)]


def number_of(text: str) -> int:
    return int(text[:DIGITS])
