package io.sealstone.function;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Objects;

/**
 * The calls of a function to its device. An object is named by its handle: its position in {@link
 * Call#objects}. A refused call throws an {@link OsdException}. Threads of a call may share this
 * object; after the call it refuses everything.
 */
public final class Osd {
    /** Level of a log line about an error. */
    public static final int ERROR = 1;
    /** Level of a log line about a warning. */
    public static final int WARNING = 2;
    /** Level of a log line for information. */
    public static final int INFO = 3;
    /** Bytes of one buffer of a stream. */
    public static final int BUFFER_BYTES = 1 << 20;
    /** Maximum bytes of the value of an attribute. */
    public static final int ATTRIBUTE_BYTES_MAX = 65534;
    /** Maximum bytes of an array that a read returns; larger objects are read by a stream. */
    public static final int READ_BYTES_MAX = 64 << 20;

    private final CallHost host;

    Osd(CallHost host) {
        this.host = host;
    }

    /**
     * Reads bytes.
     *
     * @param object handle of the object
     * @param offset offset in the object
     * @param into receives the bytes
     * @param start first position in the array
     * @param length maximum number of bytes
     * @return the number of bytes, fewer than requested only at the end of the object
     * @throws OsdException the device refused the call
     */
    public int read(int object, long offset, byte[] into, int start, int length) throws OsdException {
        Objects.checkFromIndexSize(start, length, into.length);
        return (int) OsdException.checked(host.read(object, offset, into, start, length));
    }

    /**
     * Reads bytes.
     *
     * @param object handle of the object
     * @param offset offset in the object
     * @param length maximum number of bytes
     * @return the bytes, fewer than requested only at the end of the object
     * @throws OsdException the device refused the call
     */
    public byte[] read(int object, long offset, int length) throws OsdException {
        if (length < 0 || length > READ_BYTES_MAX) {
            throw new OsdException(OsdException.TOO_LARGE);
        }
        byte[] into = new byte[length];
        int count = read(object, offset, into, 0, length);
        return count == length ? into : Arrays.copyOf(into, count);
    }

    /**
     * Reads a whole object of at most 64 MiB.
     *
     * @param object handle of the object
     * @return the bytes
     * @throws OsdException the object is larger, or the device refused the call
     */
    public byte[] read(int object) throws OsdException {
        return read(object, 0, (int) Math.min(length(object), READ_BYTES_MAX + 1L));
    }

    /**
     * Writes all bytes at an offset.
     *
     * @param object handle of the object
     * @param offset offset in the object
     * @param from the bytes
     * @throws OsdException the device refused the call
     */
    public void write(int object, long offset, byte[] from) throws OsdException {
        write(object, offset, from, 0, from.length);
    }

    /**
     * Writes a part of an array at an offset.
     *
     * @param object handle of the object
     * @param offset offset in the object
     * @param from the bytes
     * @param start first position in the array
     * @param length number of bytes
     * @throws OsdException the device refused the call
     */
    public void write(int object, long offset, byte[] from, int start, int length) throws OsdException {
        Objects.checkFromIndexSize(start, length, from.length);
        OsdException.checked(host.write(object, offset, from, start, length));
    }

    /**
     * Appends at most 4 MiB in one step.
     *
     * @param object handle of the object
     * @param from the bytes
     * @return the offset of the first byte
     * @throws OsdException the device refused the call
     */
    public long append(int object, byte[] from) throws OsdException {
        return OsdException.checked(host.append(object, from, 0, from.length));
    }

    /**
     * Removes a range of bytes; the bytes after it move down.
     *
     * @param object handle of the object
     * @param offset offset in the object
     * @param length number of bytes
     * @throws OsdException the device refused the call
     */
    public void punch(int object, long offset, long length) throws OsdException {
        OsdException.checked(host.punch(object, offset, length));
    }

    /**
     * Writes zeros to a range of bytes; the object is extended if it ends before.
     *
     * @param object handle of the object
     * @param offset offset in the object
     * @param length number of bytes
     * @throws OsdException the device refused the call
     */
    public void clear(int object, long offset, long length) throws OsdException {
        OsdException.checked(host.clear(object, offset, length));
    }

    /**
     * Returns the length of an object.
     *
     * @param object handle of the object
     * @return the length in bytes
     * @throws OsdException the device refused the call
     */
    public long length(int object) throws OsdException {
        return OsdException.checked(host.length(object));
    }

    /**
     * Returns the value of an attribute.
     *
     * @param object handle of the object
     * @param page number of the page
     * @param number number in the page
     * @return the value, or null if the attribute is absent
     * @throws OsdException the device refused the call
     */
    public byte[] attribute(int object, int page, int number) throws OsdException {
        byte[] value = new byte[ATTRIBUTE_BYTES_MAX];
        long length = host.getAttribute(object, page, number, value);
        if (length == -OsdException.NOT_FOUND) {
            return null;
        }
        return Arrays.copyOf(value, (int) Math.min(OsdException.checked(length), value.length));
    }

    /**
     * Sets an attribute.
     *
     * @param object handle of the object
     * @param page number of the page
     * @param number number in the page
     * @param value the value; no bytes remove the attribute
     * @throws OsdException the device refused the call
     */
    public void setAttribute(int object, int page, int number, byte[] value) throws OsdException {
        OsdException.checked(host.setAttribute(object, page, number, value));
    }

    /**
     * Lists the objects of a partition or collection.
     *
     * @param object handle of the partition or collection
     * @param after only numbers above this one
     * @return at most 4096 numbers in ascending order; none at the end
     * @throws OsdException the device refused the call
     */
    public long[] list(int object, long after) throws OsdException {
        long[] numbers = new long[4096];
        return Arrays.copyOf(numbers, (int) OsdException.checked(host.list(object, after, numbers)));
    }

    /**
     * Creates an object.
     *
     * @param partition handle of the partition
     * @return the new object
     * @throws OsdException the device refused the call
     */
    public OsdObject create(int partition) throws OsdException {
        long[] number = new long[1];
        int handle = (int) OsdException.checked(host.create(partition, number));
        return new OsdObject(handle, 0, number[0], 0, 0x80, 0xFF);
    }

    /**
     * Removes an object.
     *
     * @param object handle of the object
     * @throws OsdException the device refused the call
     */
    public void remove(int object) throws OsdException {
        OsdException.checked(host.remove(object));
    }

    /**
     * Creates a collection.
     *
     * @param collection handle that can create it
     * @return the new collection
     * @throws OsdException the device refused the call
     */
    public OsdObject createCollection(int collection) throws OsdException {
        long[] number = new long[1];
        int handle = (int) OsdException.checked(host.createCollection(collection, number));
        return new OsdObject(handle, 0, number[0], 0, 0x40, 0xFF);
    }

    /**
     * Removes a collection; its members stay.
     *
     * @param collection handle of the collection
     * @param force whether memberships end first; otherwise the collection must be empty
     * @throws OsdException the device refused the call
     */
    public void removeCollection(int collection, boolean force) throws OsdException {
        OsdException.checked(host.removeCollection(collection, force ? 1 : 0));
    }

    /**
     * Makes an object a member of a collection.
     *
     * @param collection handle of the collection
     * @param object handle of the object
     * @throws OsdException the device refused the call
     */
    public void addMember(int collection, int object) throws OsdException {
        OsdException.checked(host.addMember(collection, object));
    }

    /**
     * Ends the membership of an object in a collection.
     *
     * @param collection handle of the collection
     * @param object handle of the object
     * @throws OsdException the device refused the call
     */
    public void removeMember(int collection, int object) throws OsdException {
        OsdException.checked(host.removeMember(collection, object));
    }

    /**
     * Returns whether an object is a member of a collection.
     *
     * @param collection handle of the collection
     * @param object handle of the object
     * @return whether it is a member
     * @throws OsdException the device refused the call
     */
    public boolean isMember(int collection, int object) throws OsdException {
        return OsdException.checked(host.isMember(collection, object)) != 0;
    }

    /**
     * Waits until the written bytes of an object survive a power failure.
     *
     * @param object handle of the object
     * @throws OsdException the device refused the call
     */
    public void flush(int object) throws OsdException {
        OsdException.checked(host.flush(object));
    }

    /**
     * Appends bytes to the result of the call.
     *
     * @param data the bytes
     * @throws OsdException the device refused the call
     */
    public void result(byte[] data) throws OsdException {
        OsdException.checked(host.result(data, 0, data.length));
    }

    /**
     * Appends text in UTF-8 to the result of the call.
     *
     * @param text the text
     * @throws OsdException the device refused the call
     */
    public void result(String text) throws OsdException {
        result(text.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * Writes lines to the log of the job; bytes of a line beyond 4096 are dropped.
     *
     * @param text the lines
     * @throws OsdException the device refused the call
     */
    public void log(String text) throws OsdException {
        log(INFO, text);
    }

    /**
     * Writes lines to the log of the job.
     *
     * @param level {@link #ERROR}, {@link #WARNING} or {@link #INFO}
     * @param text the lines
     * @throws OsdException the device refused the call
     */
    public void log(int level, String text) throws OsdException {
        int start = 0;
        while (start <= text.length()) {
            int end = text.indexOf('\n', start);
            end = end < 0 ? text.length() : end;
            if (end > start) {
                byte[] line = text.substring(start, end).getBytes(StandardCharsets.UTF_8);
                OsdException.checked(host.log(level, line));
            }
            start = end + 1;
        }
    }

    /**
     * Reports progress.
     *
     * @param done finished units
     * @param total all units; 0 if their number is unknown
     * @throws OsdException the device refused the call
     */
    public void progress(long done, long total) throws OsdException {
        OsdException.checked(host.progress(done, total));
    }

    /**
     * Returns whether the job was cancelled. The function should then return soon; the device kills
     * it after a short delay.
     *
     * @return whether it was cancelled
     */
    public boolean isCancelled() {
        return host.isCancelled();
    }

    /**
     * Returns the time of the device.
     *
     * @return milliseconds since 1970
     */
    public long clock() {
        return host.clock();
    }

    /**
     * Opens a stream over a whole object, with read-ahead.
     *
     * @param object handle of the object
     * @return the stream
     * @throws OsdException the device refused the call
     */
    public OsdReader reader(int object) throws OsdException {
        return reader(object, 0, Long.MAX_VALUE);
    }

    /**
     * Opens a stream over a range, with read-ahead.
     *
     * @param object handle of the object
     * @param offset first byte
     * @param length number of bytes; the range may end after the object
     * @return the stream
     * @throws OsdException the device refused the call
     */
    public OsdReader reader(int object, long offset, long length) throws OsdException {
        return new OsdReader(host, OsdException.checked(host.openReader(object, offset, length)));
    }

    /**
     * Opens a stream that writes behind.
     *
     * @param object handle of the object
     * @param offset offset of the first byte
     * @return the stream
     * @throws OsdException the device refused the call
     */
    public OsdWriter writer(int object, long offset) throws OsdException {
        return new OsdWriter(host, OsdException.checked(host.openWriter(object, offset)));
    }
}
