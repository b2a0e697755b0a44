"""Google Drive: what happened to files, by the feed of changes.

A connection without a cursor first lists the files that are there, and then follows the feed from the moment
at which it began. The feed has each file once, as it is now, and does not say what was done to it: whether it
is new is told by its times. It cannot be told that a file was moved.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from holdfast.apps.connectors.normal import cut, moment, reading, stamp
from holdfast.apps.connectors.protocol import Account, Json, Page, Provider, Signal
from holdfast.apps.connectors.providers.google import Owner, Pushed, lived, place
from holdfast.apps.connectors.providers.paging import Cursor, Outdated, begin, foreign, turned, walk
from holdfast.apps.connectors.providers.shape import Thing, part, parts, words

PAGE = 1000  # the most that Google gives at once
FILE = (
    "id,name,mimeType,createdTime,modifiedTime,trashed,trashedTime,size,parents,driveId,webViewLink,"
    "owners(emailAddress),lastModifyingUser(emailAddress)"
)
CHANGES = f"nextPageToken,newStartPageToken,changes(changeType,time,removed,fileId,file({FILE}))"
FILES = f"nextPageToken,files({FILE})"
ALL_DRIVES = {"supportsAllDrives": "true", "includeItemsFromAllDrives": "true"}


class GoogleDrive(Pushed):
    provider = Provider(
        slug="google_drive",
        display_name="Google Drive",
        auth_type="oauth2",
        scopes=("drive.readonly",),
    )
    api_url = "https://www.googleapis.com"
    tells_all = False

    async def owner(self, token: str) -> Owner:
        fields = {"fields": "user(permissionId,emailAddress,displayName)"}
        answer = await self.ask(token, "/drive/v3/about", fields)
        with reading(answer.unreadable()):
            user = part(answer.object(), "user")
            return Owner(
                external_id=str(user["permissionId"]),
                display_name=cut(user.get("emailAddress") or user.get("displayName")),
            )

    async def sync(self, account: Account, cursor: Json) -> Page:
        """Cursor: `token` is where the feed goes on, `since` the time of its last change; see `_list`."""
        if cursor is None:
            start = await self._baseline(account)
        else:
            start = begin(cursor, self.provider.slug, token=str, since=str, newest=str | None)
            with reading(foreign(self.provider.slug)):
                moment(start["since"])
        return await walk(partial(self._step, account), start, self.max_items)

    async def _baseline(self, account: Account) -> Cursor:
        answer = await self.ask(account.access_token, "/drive/v3/changes/startPageToken", ALL_DRIVES)
        with reading(answer.unreadable()):
            token = answer.object()["startPageToken"]
            return {"token": str(token), "since": answer.moment.isoformat(), "listing": True}

    async def _step(self, account: Account, cursor: Cursor) -> Page:
        return await (self._list if cursor.get("listing") else self._follow)(account, cursor)

    async def _list(self, account: Account, cursor: Cursor) -> Page:
        """One page of the files that are there; `listing` is set until all are read."""
        params = {
            **ALL_DRIVES,
            "q": "trashed = false",
            "pageSize": PAGE,
            "fields": FILES,
            "pageToken": cursor.get("page"),
        }
        answer = await self.ask(account.access_token, "/drive/v3/files", params, expect=(400,))
        if answer.status == 400:
            raise Outdated(message=str(answer.error())) if "page" in cursor else answer.error()
        data = answer.object()
        with reading(answer.unreadable()):
            signals = tuple(_created(file) for file in answer.each(data.get("files", [])))
        if page := place(answer, "nextPageToken"):
            return Page(signals=signals, next_cursor=turned(cursor, page=page), has_more=True)
        following = turned(cursor, page=None, listing=None, again=None)
        return Page(signals=signals, next_cursor=following, has_more=False)

    async def _follow(self, account: Account, cursor: Cursor) -> Page:
        """One page of the feed; `newest` grows while `since` stays, so that pages agree on what is new."""
        params = {
            **ALL_DRIVES,
            "includeRemoved": "true",
            "pageSize": PAGE,
            "fields": CHANGES,
            "pageToken": cursor["token"],
        }
        answer = await self.ask(account.access_token, "/drive/v3/changes", params)
        data = answer.object()
        with reading(answer.unreadable()):
            since = moment(cursor["since"])
            changes = answer.each(data.get("changes", []))
            signals = tuple(signal for change in changes for signal in signals_of(change, since))
            times = [moment(change["time"]) for change in changes if change.get("time")]
            newest = max([moment(cursor.get("newest", cursor["since"])), *times]).isoformat()
        if page := place(answer, "nextPageToken"):
            return Page(signals=signals, next_cursor=turned(cursor, token=page, newest=newest), has_more=True)
        token = place(answer, "newStartPageToken")
        if not token:
            raise answer.unreadable()
        return Page(signals=signals, next_cursor={"token": token, "since": newest})


def signals_of(change: Thing, since: datetime) -> tuple[Signal, ...]:
    """What an entry of the feed says has happened since then; one about a whole drive says nothing."""
    if change.get("changeType", "file") != "file":
        return ()
    file = part(change, "file")
    if change.get("removed") or not file:
        return (_deleted(change["fileId"], change["time"], {"id": change["fileId"]}),)
    if file.get("trashed"):
        return (_deleted(file["id"], file.get("trashedTime") or change["time"], _payload(file)),)
    new, changed = lived(moment(file["createdTime"]), moment(file["modifiedTime"]), since)
    return ((_created(file),) if new else ()) + ((_updated(file),) if changed else ())


def _created(file: Thing) -> Signal:
    return _signal("file_created", file["id"], file["createdTime"], _payload(file))


def _updated(file: Thing) -> Signal:
    return _signal("file_updated", file["id"], file["modifiedTime"], _payload(file))


def _deleted(id: str, time: str, payload: Json) -> Signal:
    return _signal("file_deleted", id, time, payload)


def _signal(kind: str, id: str, time: str, payload: Json) -> Signal:
    key = f"google_drive:{kind}:{id}:{stamp(time)}"
    return Signal(kind=kind, occurred_at=moment(time), payload=payload, dedupe_key=key)


def _payload(file: Thing) -> dict[str, Json]:
    return {
        "id": file["id"],
        "name": cut(file.get("name")),
        "mime_type": file.get("mimeType"),
        "url": file.get("webViewLink"),
        "size": int(file["size"]) if file.get("size") else None,
        "parents": words(file, "parents"),
        "drive_id": file.get("driveId"),
        "owners": [owner.get("emailAddress") for owner in parts(file, "owners")],
        "modified_by": part(file, "lastModifyingUser").get("emailAddress"),
        "created_at": file.get("createdTime"),
        "modified_at": file.get("modifiedTime"),
    }
