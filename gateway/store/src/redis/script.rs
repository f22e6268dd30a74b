//! What the server does in one step. Each script touches the keys of one namespace alone, which are in one slot of a
//! Cluster.
//!
//! ```text
//! <prefix>:store                  what is true of the store: its format, its protection, a text to try a key on
//! <prefix>:namespaces             a set of their names
//! <prefix>:{<namespace>}:e:<key>  a hash: version, about, sealed; it expires with the entry
//! <prefix>:{<namespace>}:i        a sorted set of the keys in the order of their bytes
//! <prefix>:{<namespace>}:x        a sorted set of those that expire, by their time in ms since 1970
//! <prefix>:{<namespace>}:v        the last version
//! ```
//!
//! A version is the time of the server in microseconds, or one more than the last where that is not later. So versions grow
//! after a failover to a replica that has not seen the last ones, and in a server that was emptied. Each write takes some
//! expired keys out of the two sets, so that they hold no more than was written since.

use std::sync::LazyLock;

use ::redis::{Cmd, cmd};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::store::MAX_VALUE;

/// A script, and the name that the server knows it by.
pub(super) struct Script {
    text: String,
    name: String,
}

/// What a sealed value has beyond the value itself.
const OVERHEAD: usize = 64;
/// How many entries one answer lists at most.
const PAGE: usize = 256;
/// With how many bytes an answer is not added to.
const PAGE_BYTES: usize = 1 << 20;

/// Writes if what is there has the version `ARGV[2]`; `*` is any, and 0 none. Says whether it has, with which version, and
/// whether the namespace is new. Sent again with the same `ARGV[6]` it writes nothing more, and says the same.
pub(super) static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local found = version(entry)
        if found ~= '0' and redis.call('HGET', entry, 'w') == ARGV[6] then return {1, found, 0} end
        if ARGV[2] ~= '*' and ARGV[2] ~= found then return {0, found, 0} end
        prune()
        local new = 1 - redis.call('EXISTS', base .. ':v')
        local next = bump()
        redis.call('DEL', entry)
        redis.call('HSET', entry, 'v', next, 'a', ARGV[4], 's', ARGV[5], 'w', ARGV[6])
        redis.call('ZADD', index, 0, ARGV[1])
        if ARGV[3] == '' then
            redis.call('ZREM', expiry, ARGV[1])
        else
            local till = string.format('%.0f', now + tonumber(ARGV[3]))
            redis.call('ZADD', expiry, till, ARGV[1])
            redis.call('PEXPIREAT', entry, till)
        end
        return {1, next, new}",
    )
});

/// Removes what is there if it has the version `ARGV[2]`; `*` is any.
pub(super) static REMOVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        if redis.call('EXISTS', entry) == 0 then return 0 end
        if ARGV[2] ~= '*' and ARGV[2] ~= version(entry) then return 0 end
        prune()
        bump()
        redis.call('ZREM', index, ARGV[1])
        redis.call('ZREM', expiry, ARGV[1])
        return redis.call('DEL', entry)",
    )
});

/// Gives what is there, and in how many ms it expires: 0 nothing, 2 something else.
pub(super) static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local size = length(entry, 'a') + length(entry, 's')
        if size > tonumber(ARGV[2]) then return {2} end
        if redis.call('EXISTS', entry) == 0 then return {0} end
        local found = redis.call('HMGET', entry, 'v', 'a', 's')
        if not (found[1] and found[2] and found[3]) then return {2} end
        return {1, found[1], found[2], found[3], redis.call('PTTL', entry)}",
    )
});

/// Gives the keys from `ARGV[2]` to `ARGV[3]` without what is secret, and after which one to go on. One that is something
/// else has the version 0.
pub(super) static LIST: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local most = tonumber(ARGV[4])
        local names = redis.call('ZRANGEBYLEX', index, ARGV[2], ARGV[3], 'LIMIT', 0, most)
        local rows, size, last = {}, 0, #names == most and names[most] or ''
        for _, name in ipairs(names) do
            local at = base .. ':e:' .. name
            local row = {name, '0', ''}
            if length(at, 'a') <= tonumber(ARGV[5]) then
                local found = redis.call('HMGET', at, 'v', 'a')
                if found[1] and found[2] then row = {name, found[1], found[2]} end
            end
            if row[2] == '0' and redis.call('EXISTS', at) == 0 then
                redis.call('ZREM', index, name)
                redis.call('ZREM', expiry, name)
            else
                rows[#rows + 1] = row
                size = size + #name + #row[3]
            end
            if size > tonumber(ARGV[6]) then last = name break end
        end
        return {last, rows}",
    )
});

/// What all of them begin with.
const HEAD: &str = r"
    local base = KEYS[1]
    local entry, index, expiry = base .. ':e:' .. ARGV[1], base .. ':i', base .. ':x'
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local function length(at, field)
        local found = redis.pcall('HSTRLEN', at, field)
        return type(found) == 'number' and found or math.huge
    end
    local function version(at)
        local found = redis.pcall('HGET', at, 'v')
        return type(found) == 'string' and found or '0'
    end
    local function bump()
        local last = tonumber(redis.call('GET', base .. ':v') or '') or 0
        local next = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
        redis.call('SET', base .. ':v', next)
        return next
    end
    local function prune()
        local gone = redis.call('ZRANGEBYSCORE', expiry, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 100)
        for _, name in ipairs(gone) do
            redis.call('ZREM', index, name)
            redis.call('ZREM', expiry, name)
            redis.call('DEL', base .. ':e:' .. name)
        end
    end
";

impl Script {
    fn new(body: &str) -> Self {
        let text = [HEAD, body].concat();
        let name = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Self { name: hex::encode(name), text }
    }

    /// Runs it by its name, which the server knows once it has run it by its text.
    pub(super) fn by_name(&self, base: &str, arguments: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.name, base, arguments)
    }

    pub(super) fn by_text(&self, base: &str, arguments: &[&[u8]]) -> Cmd {
        call("EVAL", &self.text, base, arguments)
    }
}

fn call(name: &str, script: &str, base: &str, arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(name);
    command.arg(script).arg(1).arg(base).arg(arguments);
    command
}

/// The bounds of what [`READ`] gives.
pub(super) fn read_bounds() -> String {
    (MAX_VALUE + OVERHEAD).to_string()
}

/// The bounds of what [`LIST`] gives: how many, of which size, and how much together.
pub(super) fn list_bounds() -> [String; 3] {
    [PAGE.to_string(), MAX_VALUE.to_string(), PAGE_BYTES.to_string()]
}
