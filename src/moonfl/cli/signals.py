"""The exception that SIGTERM raises."""


class Terminated(SystemExit):
    """The end of the process on SIGTERM, with the message to print."""

    STATUS = 143  # 128 + SIGTERM

    def __init__(self, message: str) -> None:
        super().__init__(self.STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message
