"""Google Drive on loopback: about, files, and the feed of changes, as documented for v3."""

from __future__ import annotations

from typing import Any

from connectors.servers.base import Asked, Reply, route
from connectors.servers.google import GoogleServer, at


def file(id: str, created: float = 0, modified: float | None = None, **more: Any) -> dict[str, Any]:
    """A file as the API has it; times are seconds after the beginning."""
    return {
        "id": id,
        "name": f"{id}.txt",
        "mimeType": "text/plain",
        "createdTime": at(created),
        "modifiedTime": at(created if modified is None else modified),
        "trashed": False,
        "size": "120",
        "parents": ["root-folder"],
        "webViewLink": f"https://drive.google.com/file/d/{id}/view",
        "owners": [{"emailAddress": "ada@example.com"}],
        "lastModifyingUser": {"emailAddress": "ben@example.com"},
        **more,
    }


class DriveServer(GoogleServer):
    """`files` is what there is, `changes` all that ever happened; the feed has each file's last one only."""

    scope = "drive.readonly"

    def __init__(self) -> None:
        super().__init__()
        self.files: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.stale: set[str] = set()  # page tokens that are not known any more

    def put(self, one: dict[str, Any], time: float) -> None:
        """A file is made or changed."""
        self.files = [other for other in self.files if other["id"] != one["id"]] + [one]
        self._change(one["id"], time, file=one, removed=False)

    def remove(self, id: str, time: float) -> None:
        """A file is gone for good."""
        self.files = [other for other in self.files if other["id"] != id]
        self._change(id, time, removed=True)

    def _change(self, id: str, time: float, **more: Any) -> None:
        self.changes.append({"changeType": "file", "fileId": id, "time": at(time), **more})

    @route("GET", "/drive/v3/about")
    def about(self, request: Asked) -> Reply:
        assert "user" in request.query["fields"]  # Drive refuses `about` without fields
        user = {"permissionId": "0918", "emailAddress": "ada@example.com", "displayName": "Ada"}
        return Reply({"user": user})

    @route("GET", "/drive/v3/changes/startPageToken")
    def start_token(self, request: Asked) -> Reply:
        return Reply({"kind": "drive#startPageToken", "startPageToken": str(len(self.changes))})

    @route("GET", "/drive/v3/files")
    def list_files(self, request: Asked) -> Reply:
        assert request.query["q"] == "trashed = false"
        if request.query.get("pageToken") in self.stale:
            return Reply({"error": {"code": 400, "errors": [{"reason": "invalid"}]}}, 400)
        found = [one for one in self.files if not one["trashed"]]
        shown, following = self.page(request, found, "pageSize")
        return Reply({"files": shown, **({"nextPageToken": following} if following else {})})

    @route("GET", "/drive/v3/changes")
    def list_changes(self, request: Asked) -> Reply:
        assert request.query["includeRemoved"] == "true"
        begin = int(request.query["pageToken"])
        last = {change["fileId"]: number for number, change in enumerate(self.changes)}
        kept = [n for n in range(begin, len(self.changes)) if last[self.changes[n]["fileId"]] == n]
        size = min(int(request.query["pageSize"]), self.most or 1000)
        shown, rest = kept[:size], kept[size:]
        token = {"nextPageToken": str(rest[0])} if rest else {"newStartPageToken": str(len(self.changes))}
        return Reply({"kind": "drive#changeList", "changes": [self.changes[n] for n in shown], **token})
