package io.sealstone.function;

import java.io.IOException;

/** A call that the device refused, with an error number of {@code errno.h}. */
public final class OsdException extends IOException {
    private static final long serialVersionUID = 1L;

    private static final int[] NUMBERS = {2, 5, 8, 9, 12, 13, 16, 22, 27, 28, 38, 39, 74, 125};
    private static final String[] TEXTS = {
        "ENOENT: the object, attribute or method does not exist",
        "EIO: the device failed to read or write",
        "ENOEXEC: the code cannot be loaded",
        "EBADF: the call has no object or stream of this number",
        "ENOMEM: the memory limit of the job or its heap is reached",
        "EACCES: the capability does not permit the access",
        "EBUSY: too many streams are open, or a buffer is in use",
        "EINVAL: an argument is invalid",
        "EFBIG: an object, a result or a value is larger than its limit",
        "ENOSPC: the device or the quota is full",
        "ENOSYS: the device does not implement the call",
        "ENOTEMPTY: the collection has members",
        "EBADMSG: the data does not have the expected format",
        "ECANCELED: the job was cancelled",
    };

    /** The object, attribute or method does not exist. */
    public static final int NOT_FOUND = 2;
    /** The call has no object or stream of this number. */
    public static final int BAD_HANDLE = 9;
    /** The capability does not permit the access. */
    public static final int ACCESS_REFUSED = 13;
    /** An argument is invalid. */
    public static final int INVALID = 22;
    /** An object, a result or a value is larger than its limit. */
    public static final int TOO_LARGE = 27;
    /** The collection has members. */
    public static final int NOT_EMPTY = 39;
    /** The data does not have the expected format. */
    public static final int BAD_DATA = 74;
    /** The job was cancelled. */
    public static final int CANCELLED = 125;

    private final int errno;

    /**
     * Creates an exception.
     *
     * @param errno a positive error number
     */
    public OsdException(int errno) {
        this(errno, text(errno));
    }

    /**
     * Creates an exception with a message.
     *
     * @param errno a positive error number
     * @param message the message
     */
    public OsdException(int errno, String message) {
        super(message);
        this.errno = errno;
    }

    /**
     * Returns the error number.
     *
     * @return a positive number
     */
    public int errno() {
        return errno;
    }

    private static String text(int errno) {
        for (int index = 0; index < NUMBERS.length; index++) {
            if (NUMBERS[index] == errno) {
                return TEXTS[index];
            }
        }
        return "error " + errno;
    }

    /** Returns a result that is no error number. */
    static long checked(long result) throws OsdException {
        if (result < 0) {
            throw new OsdException((int) Math.min(-result, Integer.MAX_VALUE));
        }
        return result;
    }
}
