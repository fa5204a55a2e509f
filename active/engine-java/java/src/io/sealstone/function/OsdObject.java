package io.sealstone.function;

/** An object of a call. */
public final class OsdObject {
    /** The right to read bytes. */
    public static final int READ = 0x80;
    /** The right to write bytes. */
    public static final int WRITE = 0x40;
    /** The right to read attributes. */
    public static final int GET_ATTRIBUTE = 0x20;
    /** The right to set attributes. */
    public static final int SET_ATTRIBUTE = 0x10;
    /** The right to create objects. */
    public static final int CREATE = 0x08;
    /** The right to remove objects. */
    public static final int REMOVE = 0x04;
    /** The right to manage the object. */
    public static final int MANAGE = 0x02;
    /** The right to append bytes. */
    public static final int APPEND = 0x01;

    private final int handle;
    private final long partition;
    private final long number;
    private final long length;
    private final int kind;
    private final int rights;

    OsdObject(int handle, long partition, long number, long length, int kind, int rights) {
        this.handle = handle;
        this.partition = partition;
        this.number = number;
        this.length = length;
        this.kind = kind;
        this.rights = rights;
    }

    /**
     * Returns the handle, which all calls of {@link Osd} take.
     *
     * @return the position in the objects of the call
     */
    public int handle() {
        return handle;
    }

    /**
     * Returns the partition.
     *
     * @return its number
     */
    public long partition() {
        return partition;
    }

    /**
     * Returns the number of the object in its partition.
     *
     * @return the number
     */
    public long number() {
        return number;
    }

    /**
     * Returns the length at the start of the call.
     *
     * @return the length in bytes
     */
    public long length() {
        return length;
    }

    /**
     * Returns the kind of the object.
     *
     * @return {@code user}, {@code collection}, {@code partition} or {@code unknown}
     */
    public String kind() {
        return switch (kind) {
            case 0x02 -> "partition";
            case 0x40 -> "collection";
            case 0x80 -> "user";
            default -> "unknown";
        };
    }

    /**
     * Returns whether the call has a right to the object.
     *
     * @param right one of the constants of this class
     * @return whether it has the right
     */
    public boolean permits(int right) {
        return (rights & right) == right;
    }

    @Override
    public String toString() {
        return "object " + handle + ", " + length + " bytes";
    }
}
