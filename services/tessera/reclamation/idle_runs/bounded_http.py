"""HTTP answers of bounded size and time, for the sources of GPU use; no cookies, no redirects."""

import aiohttp

from tessera.kernel.errors import Transient


class BoundedHttp:
    """One session, opened by the first request. Every failure is a Transient that begins with the name of the peer."""

    def __init__(self, timeout_seconds: float, bytes_max: int) -> None:
        self._timeout_seconds, self._bytes_max = timeout_seconds, bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def read(self, peer: str, url: str, form: dict[str, str] | None = None) -> bytes:
        """Body of the answer to a GET, or to a POST of a form. Raises Transient for any answer but 200."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        method = "GET" if form is None else "POST"
        try:
            async with self._session.request(method, url, data=form, allow_redirects=False) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > self._bytes_max:
                        raise Transient(f"{peer} answered more than {self._bytes_max} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Transient(f"{peer}: {error!r}") from error
        if response.status != 200:
            raise Transient(f"{peer} answered {response.status}: {body[:200].decode(errors='replace')}")
        return bytes(body)

    async def close(self) -> None:
        """Closes the session, if one is open; the next request opens another."""
        if self._session is not None:
            await self._session.close()
            self._session = None
