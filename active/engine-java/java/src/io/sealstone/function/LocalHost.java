package io.sealstone.function;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Objects in memory, for tests without a device. It checks numbers as a device does. */
final class LocalHost implements CallHost {
    private static final long FIRST_NUMBER = 0x10000;
    private static final int REQUEST_BYTES_MAX = 4 << 20;
    private static final int STREAMS_MAX = 8;
    private static final int LINE_BYTES_MAX = 4096;

    private static final long NOT_FOUND = -2;
    private static final long BAD_HANDLE = -9;
    private static final long BUSY = -16;
    private static final long INVALID = -22;
    private static final long TOO_LARGE = -27;
    private static final long NOT_EMPTY = -39;

    /** A stream of a call. */
    private static final class LocalStream {
        private final int object;
        private final long end;
        private final boolean isWriter;
        private long next;

        LocalStream(int object, long next, long end, boolean isWriter) {
            this.object = object;
            this.next = next;
            this.end = end;
            this.isWriter = isWriter;
        }
    }

    /** Objects by handle; null for a removed one. */
    final List<byte[]> objects;

    final List<String> log = new ArrayList<>();
    private final Map<String, byte[]> attributes = new HashMap<>();
    /** Members by the handle of their collection. */
    private final Map<Integer, Set<Integer>> members = new HashMap<>();

    private final Map<Long, LocalStream> streams = new HashMap<>();
    private final long resultBytesMax;
    private byte[] result = new byte[0];
    private long nextStream;

    LocalHost(List<byte[]> objects, long resultBytesMax) {
        this.objects = new ArrayList<>(objects);
        this.resultBytesMax = resultBytesMax;
    }

    byte[] result() {
        return result;
    }

    /** Returns 0 if the object exists, and an error number if not. */
    private long state(int object) {
        if (object < 0 || object >= objects.size()) {
            return BAD_HANDLE;
        }
        return objects.get(object) == null ? NOT_FOUND : 0;
    }

    @Override
    public synchronized long read(int object, long offset, byte[] into, int start, int length) {
        if (state(object) < 0) {
            return state(object);
        }
        if (offset < 0 || offset > Long.MAX_VALUE - length) {
            return INVALID;
        }
        byte[] data = objects.get(object);
        int count = (int) Math.max(0, Math.min(length, data.length - offset));
        if (count > 0) {
            System.arraycopy(data, (int) offset, into, start, count);
        }
        return count;
    }

    @Override
    public synchronized long write(int object, long offset, byte[] from, int start, int length) {
        if (state(object) < 0) {
            return state(object);
        }
        if (offset < 0) {
            return INVALID;
        }
        if (offset > Integer.MAX_VALUE - 8L - length) {
            return TOO_LARGE;
        }
        byte[] data = objects.get(object);
        int end = (int) offset + length;
        if (length > 0 && end > data.length) {
            data = Arrays.copyOf(data, end);
            objects.set(object, data);
        }
        System.arraycopy(from, start, data, length > 0 ? (int) offset : 0, length);
        return length;
    }

    @Override
    public synchronized long append(int object, byte[] from, int start, int length) {
        if (state(object) < 0) {
            return state(object);
        }
        if (length > REQUEST_BYTES_MAX) {
            return TOO_LARGE;
        }
        long offset = objects.get(object).length;
        long written = write(object, offset, from, start, length);
        return written < 0 ? written : offset;
    }

    @Override
    public synchronized long punch(int object, long offset, long length) {
        if (state(object) < 0) {
            return state(object);
        }
        if (offset < 0 || length < 0 || offset > Long.MAX_VALUE - length) {
            return INVALID;
        }
        byte[] data = objects.get(object);
        int start = (int) Math.min(offset, data.length);
        int end = (int) Math.min(offset + length, data.length);
        byte[] shorter = Arrays.copyOf(data, data.length - (end - start));
        System.arraycopy(data, end, shorter, start, data.length - end);
        objects.set(object, shorter);
        return 0;
    }

    @Override
    public synchronized long length(int object) {
        return state(object) < 0 ? state(object) : objects.get(object).length;
    }

    @Override
    public synchronized long getAttribute(int object, int page, int number, byte[] into) {
        if (state(object) < 0) {
            return state(object);
        }
        byte[] value = attributes.get(object + "/" + page + "/" + number);
        if (value == null) {
            return NOT_FOUND;
        }
        System.arraycopy(value, 0, into, 0, Math.min(value.length, into.length));
        return value.length;
    }

    @Override
    public synchronized long setAttribute(int object, int page, int number, byte[] value) {
        if (state(object) < 0) {
            return state(object);
        }
        if (value.length > Osd.ATTRIBUTE_BYTES_MAX) {
            return TOO_LARGE;
        }
        String key = object + "/" + page + "/" + number;
        if (value.length == 0) {
            attributes.remove(key);
        } else {
            attributes.put(key, value.clone());
        }
        return 0;
    }

    @Override
    public synchronized long list(int object, long after, long[] into) {
        if (state(object) < 0) {
            return state(object);
        }
        int count = 0;
        for (int handle = 0; handle < objects.size() && count < into.length; handle++) {
            boolean isListed = !members.containsKey(object) || members.get(object).contains(handle);
            if (isListed && objects.get(handle) != null && FIRST_NUMBER + handle > after) {
                into[count++] = FIRST_NUMBER + handle;
            }
        }
        return count;
    }

    @Override
    public synchronized long create(int partition, long[] number) {
        if (state(partition) < 0) {
            return state(partition);
        }
        objects.add(new byte[0]);
        number[0] = FIRST_NUMBER + objects.size() - 1;
        return objects.size() - 1;
    }

    @Override
    public synchronized long remove(int object) {
        long state = userState(object);
        return state < 0 ? state : removed(object);
    }

    private long removed(int object) {
        objects.set(object, null);
        members.values().forEach(set -> set.remove(object));
        return 0;
    }

    @Override
    public synchronized long clear(int object, long offset, long length) {
        if (state(object) < 0) {
            return state(object);
        }
        if (offset < 0 || length < 0 || offset > Long.MAX_VALUE - length) {
            return INVALID;
        }
        if (length > 0 && offset + length > Integer.MAX_VALUE - 8L) {
            return TOO_LARGE;
        }
        if (length > 0) {
            byte[] data = objects.get(object);
            data = Arrays.copyOf(data, (int) Math.max(data.length, offset + length));
            Arrays.fill(data, (int) offset, (int) (offset + length), (byte) 0);
            objects.set(object, data);
        }
        return 0;
    }

    /** Returns 0 if the handle is that of a collection, and an error number if not. */
    private long collectionState(int collection) {
        long state = state(collection);
        return state == 0 && !members.containsKey(collection) ? INVALID : state;
    }

    /** Returns 0 if the handle is that of an object that can be a member, and an error number if not. */
    private long userState(int object) {
        long state = state(object);
        return state == 0 && members.containsKey(object) ? INVALID : state;
    }

    @Override
    public synchronized long createCollection(int collection, long[] number) {
        long handle = create(collection, number);
        if (handle >= 0) {
            members.put((int) handle, new HashSet<>());
        }
        return handle;
    }

    @Override
    public synchronized long removeCollection(int collection, int force) {
        long state = collectionState(collection);
        if (state < 0) {
            return state;
        }
        if (force < 0 || force > 1) {
            return INVALID;
        }
        if (force == 0 && !members.get(collection).isEmpty()) {
            return NOT_EMPTY;
        }
        members.remove(collection);
        return removed(collection);
    }

    /** Returns 0 if both handles fit, and an error number if not. */
    private long pairState(int collection, int object) {
        long state = collectionState(collection);
        return state < 0 ? state : userState(object);
    }

    @Override
    public synchronized long addMember(int collection, int object) {
        long state = pairState(collection, object);
        if (state == 0) {
            members.get(collection).add(object);
        }
        return state;
    }

    @Override
    public synchronized long removeMember(int collection, int object) {
        long state = pairState(collection, object);
        if (state < 0) {
            return state;
        }
        return members.get(collection).remove(object) ? 0 : NOT_FOUND;
    }

    @Override
    public synchronized long isMember(int collection, int object) {
        long state = pairState(collection, object);
        if (state < 0) {
            return state;
        }
        return members.get(collection).contains(object) ? 1 : 0;
    }

    @Override
    public synchronized long flush(int object) {
        return state(object);
    }

    @Override
    public synchronized long result(byte[] data, int start, int length) {
        if (result.length + (long) length > resultBytesMax) {
            return TOO_LARGE;
        }
        int end = result.length;
        result = Arrays.copyOf(result, end + length);
        System.arraycopy(data, start, result, end, length);
        return 0;
    }

    @Override
    public synchronized long log(int level, byte[] text) {
        if (level < Osd.ERROR || level > Osd.INFO) {
            return INVALID;
        }
        log.add(new String(text, 0, Math.min(text.length, LINE_BYTES_MAX), StandardCharsets.UTF_8));
        return 0;
    }

    @Override
    public long progress(long done, long total) {
        return done < 0 || total < 0 ? INVALID : 0;
    }

    @Override
    public boolean isCancelled() {
        return false;
    }

    @Override
    public long clock() {
        return System.currentTimeMillis();
    }

    private long open(LocalStream stream) {
        if (streams.size() == STREAMS_MAX) {
            return BUSY;
        }
        streams.put(nextStream, stream);
        return nextStream++;
    }

    @Override
    public synchronized long openReader(int object, long offset, long length) {
        if (offset < 0 || length < 0) {
            return object < 0 ? BAD_HANDLE : INVALID;
        }
        long end = offset > Long.MAX_VALUE - length ? Long.MAX_VALUE : offset + length;
        return object < 0 ? BAD_HANDLE : open(new LocalStream(object, offset, end, false));
    }

    @Override
    public synchronized ByteBuffer readNext(long number, long[] error) {
        LocalStream stream = streams.get(number);
        long state = stream == null || stream.isWriter ? BAD_HANDLE : state(stream.object);
        if (state < 0) {
            error[0] = state;
            return null;
        }
        byte[] data = objects.get(stream.object);
        long end = Math.min(Math.min(stream.end, data.length), stream.next + Osd.BUFFER_BYTES);
        if (stream.next >= end) {
            return ByteBuffer.allocate(0);
        }
        byte[] part = Arrays.copyOfRange(data, (int) stream.next, (int) end);
        stream.next = end;
        return ByteBuffer.wrap(part);
    }

    @Override
    public synchronized long openWriter(int object, long offset) {
        if (offset < 0 || object < 0) {
            return object < 0 ? BAD_HANDLE : INVALID;
        }
        return open(new LocalStream(object, offset, Long.MAX_VALUE, true));
    }

    @Override
    public synchronized long writeNext(long number, byte[] from, int start, int length) {
        LocalStream stream = streams.get(number);
        if (stream == null || !stream.isWriter) {
            return BAD_HANDLE;
        }
        if (length > Osd.BUFFER_BYTES) {
            return TOO_LARGE;
        }
        long written = write(stream.object, stream.next, from, start, length);
        if (written > 0) {
            stream.next += written;
        }
        return written;
    }

    @Override
    public synchronized long closeStream(long number, boolean isWriter) {
        LocalStream stream = streams.get(number);
        if (stream == null || stream.isWriter != isWriter) {
            return BAD_HANDLE;
        }
        streams.remove(number);
        return 0;
    }
}
